#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "memory/memory_plan.h"
#include "plan/run_plan.h"

namespace braid {

/// Names of parts that come beside the plan.
inline constexpr std::string_view kKernelScratch = "scratch of kernels";

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
  /// Adds to the part of that name, which comes last if there is none. 0 bytes change nothing.
  void add(std::string_view what, int64_t bytes);
  /// The classes of a plan, `times` each.
  void add(const MemoryPlan& memory, int64_t times = 1);
};

/// "weights 1.20 GiB, main weights 2.40 GiB, ..."
std::string describe_parts(const MemoryNeeds& needs);

struct GpuNeedsOptions {
  bool repeatable = true;     ///< as runtime.repeatable
  bool with_context = false;  ///< also CUDA's context: not yet in what is said to be free
};

/// Of a rank on a GPU: the arenas of its plan, which is exactly what is allocated for them,
/// kernels' scratch and what the driver and NCCL take (backends/cuda/device_needs.h), which are
/// bounds.
MemoryNeeds gpu_needs(const RankPlan& rank, const GpuNeedsOptions& options);

/// What of that is NCCL's, by communicator: "nccl      about 1.78 GiB of 3 communicators:
/// gradient.shard of ranks 0, 1 608 MiB; ..." and the end of the line; empty if there are none.
std::string describe_nccl_needs(const RankPlan& rank);

}  // namespace braid
