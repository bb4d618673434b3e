#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "memory/memory_plan.h"
#include "plan/run_plan.h"
#include "sim/device_spec.h"

namespace braid {

/// Bytes that one memory must hold, by class, known before anything is allocated.
struct MemoryNeeds {
  struct Part {
    std::string what;  ///< a class of memory_classes.h, or memory outside the plan
    int64_t bytes = 0;
  };

  std::string whose;        ///< "rank 3", "2 ranks"
  std::vector<Part> parts;  ///< no part has 0 bytes

  int64_t bytes() const;
  /// Requires a part.
  const Part& largest() const;
  /// Adds bytes to the part named `what`, or appends that part. 0 bytes change nothing.
  void add(std::string_view what, int64_t bytes);
  /// Adds the classes of a plan, each `times` times.
  void add(const MemoryPlan& memory, int64_t times = 1);
};

/// "weights 1.20 GiB, main weights 2.40 GiB, ..."
std::string describe_parts(const MemoryNeeds& needs);

/// The needs of a rank that has its own device: the arenas of its plan (exactly the bytes allocated
/// for them) and the memory that the backend uses besides them.
MemoryNeeds rank_needs(const Backend& backend, const RankPlan& rank,
                       const DeviceNeedsOptions& options);

/// Bytes to compare with DeviceSpec::memory_bytes: `rank_needs` plus the context of a process. On
/// the host: the arenas only.
int64_t rank_bytes(const DeviceSpec& device, const RankPlan& rank, bool repeatable);

}  // namespace braid
