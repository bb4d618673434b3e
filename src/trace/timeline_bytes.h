#pragma once

#include <string>
#include <string_view>

#include "trace/timeline.h"

namespace braid {

/// A rank's timeline for another process of the same run, and back. Throws DeviceError for bytes
/// that are none.
std::string timeline_bytes(const RankTimeline& timeline);
RankTimeline timeline_of_bytes(std::string_view bytes);

}  // namespace braid
