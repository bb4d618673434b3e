#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "memory/live_ranges.h"

namespace braid {

/// The buffers of the heaviest set in which all interfere with each other, ascending: a lower bound
/// for every plan by these live ranges, and the best one that pairs of buffers give. At least as
/// heavy as any set that is live at one moment of a possible order of execution. `sizes_bytes` is
/// by BufferId. Empty if the search takes more than `max_steps` steps, each of a few nanoseconds.
///
/// Bytes flow from each buffer to those that may reuse them; the bytes that the largest flow leaves
/// without a source are as many as the heaviest set has (Dilworth, A decomposition theorem for
/// partially ordered sets, 1950; with weights). The flow is Dinic's (1970).
std::optional<std::vector<uint32_t>> find_heaviest_clique(const LiveRanges& ranges,
                                                          std::span<const int64_t> sizes_bytes,
                                                          int64_t max_steps);

}  // namespace braid
