#pragma once

#include <string>
#include <vector>

#include "parallel/schedule_stats.h"

namespace braid {

/// The jobs of each rank as a picture for report.html: a row per rank, time from left to right, a
/// box per job, coloured by kind (paler for later virtual stages), with its microbatch if there is
/// room, and a legend. One self-contained <svg> element, which uses the colours of the page if it
/// defines them.
///
/// For a large schedule the picture shows the first and last ranks and the start and end of the
/// step, and says how much it leaves out; its size stays below about 0.5 MB for every schedule.
std::string schedule_svg(const std::vector<std::vector<JobSlot>>& slots);

}  // namespace braid
