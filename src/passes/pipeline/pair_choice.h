#pragma once

#include <vector>

#include "parallel/schedule.h"
#include "passes/overlap_axis.h"

namespace braid {

/// Which jobs the schedule brings together for pass pair_forward_backward.
JobPairs job_pairs(const OverlapConfig& overlap);

/// Whether pass halve_forward is asked for.
bool halves_forwards(const OverlapConfig& overlap);

/// What overlap.pair_forward_backward may be for this run: only what `validate` takes, and halves
/// only if overlap.may_change_rounding.
std::vector<OverlapAxis> pair_axes(const RunConfig& config, const AxisLimits& limits);

}  // namespace braid
