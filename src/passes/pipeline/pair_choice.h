#pragma once

#include <vector>

#include "parallel/schedule.h"
#include "passes/overlap_axis.h"

namespace braid {

/// The kind of pairs that the schedule makes for pass pair_forward_backward.
JobPairs job_pairs(const OverlapConfig& overlap);

/// Whether the configuration asks for pass halve_forward.
bool halves_forwards(const OverlapConfig& overlap);

/// The values of overlap.pair_forward_backward that a search may try: those that `validate`
/// accepts. Halves also need overlap.may_change_rounding.
std::vector<OverlapAxis> pair_axes(const RunConfig& config, const AxisLimits& limits);

}  // namespace braid
