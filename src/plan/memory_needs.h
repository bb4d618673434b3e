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

/// Of a rank on a device of its own memory: the arenas of its plan, which is exactly what is
/// allocated for them, and what the backend takes beside them.
MemoryNeeds rank_needs(const Backend& backend, const RankPlan& rank,
                       const DeviceNeedsOptions& options);

/// What counts against DeviceSpec::memory_bytes: `rank_needs` with the context of a process; on the
/// host the arenas.
int64_t rank_bytes(const DeviceSpec& device, const RankPlan& rank, bool repeatable);

}  // namespace braid
