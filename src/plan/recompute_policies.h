#pragma once

#include <vector>

#include "config/choices.h"
#include "config/run_config.h"
#include "ops/op.h"

namespace braid {

/// "auto" is decided later, when the memory is known (runtime/choose_recompute.h); until then no
/// recompute.
Recompute recompute_policy(RecomputeChoice choice);

/// The values of memory.recompute worth a trial in a layout, from the one that repeats least:
/// "compute" only where layers exchange rows of experts, elements of heads, or sums of tensor
/// ranks, which "full" repeats. Elsewhere both make the same program.
std::vector<RecomputeChoice> recompute_policies(const ParallelConfig& parallel);

/// Those of `policies` right before and after `policy`, which need not be one of them.
std::vector<RecomputeChoice> policies_beside(const std::vector<RecomputeChoice>& policies,
                                             RecomputeChoice policy);

}  // namespace braid
