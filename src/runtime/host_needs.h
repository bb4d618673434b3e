#pragma once

#include <span>

#include "parallel/parameter_layout.h"
#include "plan/memory_needs.h"
#include "plan/run_plan.h"

namespace braid {

/// Host memory of all ranks of a run on the CPU: arenas, kernels' scratch, and the pieces through
/// which state is loaded and saved. Where only some ranks are planned they count for the others,
/// each for as many. `host_ranks`: those that run on this host, if they are not all.
MemoryNeeds cpu_needs(const RunPlan& plan, int threads_per_rank,
                      std::span<const int> host_ranks = {});

/// Host memory of one rank alone on the CPU, a generator for example, whose state comes through
/// pieces of `layout`.
MemoryNeeds cpu_needs(const RankPlan& rank, const ParameterLayout& layout, int threads);

/// Host memory of a run on GPUs: what ranks keep on the host, and the pieces; ranks as above.
MemoryNeeds staging_needs(const RunPlan& plan, std::span<const int> host_ranks = {});

}  // namespace braid
