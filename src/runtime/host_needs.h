#pragma once

#include <span>

#include "parallel/parameter_layout.h"
#include "plan/memory_needs.h"
#include "plan/run_plan.h"

namespace braid {

/// Host memory of all ranks of a run on the CPU: arenas, kernels' scratch, the pieces for loading
/// and saving state, and the copies for checkpoint.async. If only some ranks are planned, each also
/// represents a number of the others. `host_ranks`: those that run on this host, if not all.
MemoryNeeds cpu_needs(const RunPlan& plan, int threads_per_rank,
                      std::span<const int> host_ranks = {});

/// Host memory of a single rank on the CPU, for example a generator, whose state is loaded in
/// pieces of `layout`.
MemoryNeeds cpu_needs(const RankPlan& rank, const ParameterLayout& layout, int threads);

/// Host memory of a run on GPUs: the memory that ranks keep on the host, the pieces and the copies;
/// ranks as above.
MemoryNeeds staging_needs(const RunPlan& plan, std::span<const int> host_ranks = {});

}  // namespace braid
