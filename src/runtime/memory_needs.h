#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/run_plan.h"

namespace braid {

/// What one memory must hold, by class, before anything is allocated.
struct MemoryNeeds {
  struct Part {
    std::string what;  ///< a class of memory_classes.h, or what comes beside the plan
    int64_t bytes = 0;
  };

  std::string whose;        ///< "rank 3", "2 ranks"
  std::vector<Part> parts;  ///< none of them 0

  int64_t bytes() const;
  /// Requires a part.
  const Part& largest() const;
};

/// "weights 1.20 GiB, main weights 2.40 GiB, ..."
std::string describe_parts(const MemoryNeeds& needs);

struct GpuNeedsOptions {
  bool repeatable = true;     ///< as runtime.repeatable
  bool with_context = false;  ///< also CUDA's context: not yet in what is said to be free
};

/// Of a rank on a GPU: the arenas of its plan, which is exactly what is allocated for them,
/// kernels' scratch and what the driver takes (backends/cuda/device_needs.h), which are bounds.
MemoryNeeds gpu_needs(const RankPlan& rank, const GpuNeedsOptions& options);

/// Host memory of all ranks of a run on the CPU: arenas, kernels' scratch, and the pieces through
/// which state is loaded and saved. Where only some ranks are planned they count for the others,
/// each for as many.
MemoryNeeds cpu_needs(const RunPlan& plan, int threads_per_rank);

/// Host memory of one rank alone on the CPU, a generator for example, whose state comes through
/// pieces of `layout`.
MemoryNeeds cpu_needs(const RankPlan& rank, const ParameterLayout& layout, int threads);

/// Host memory of a run on GPUs: what ranks keep on the host, and the pieces as above.
MemoryNeeds staging_needs(const RunPlan& plan);

}  // namespace braid
