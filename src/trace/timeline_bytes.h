#pragma once

#include <string>
#include <string_view>

#include "trace/timeline.h"

namespace braid {

/// Serializes a rank's timeline for another process of the same run, and reads it back. Throws
/// DeviceError for bytes that are not a timeline.
std::string timeline_bytes(const RankTimeline& timeline);
RankTimeline timeline_of_bytes(std::string_view bytes);

}  // namespace braid
