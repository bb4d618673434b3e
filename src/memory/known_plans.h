#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "base/wide_hash.h"
#include "ir/program.h"
#include "memory/memory_plan.h"

namespace braid {

/// What the offsets of a program's step buffers depend on: sizes and roles of buffers, and which
/// buffers the tasks of each stream touch between which events. Names, ops and the parts of buffers
/// make no difference, so programs of context ranks that attend to other chunks often have equal
/// keys.
WideHash::Value packing_key(const Program& program);

/// Step plans that were made before, by `packing_key`. Several threads may use it at once.
class KnownPlans {
 public:
  std::optional<StepPlan> find(const WideHash::Value& key) const;
  void add(const WideHash::Value& key, const StepPlan& plan);

 private:
  mutable std::mutex mutex_;
  std::map<WideHash::Value, StepPlan> plans_;
};

/// The same plan as that of `plan_memory`, with step plans from `known` if it has them. Adds those
/// that it makes.
MemoryPlan plan_memory_with(std::span<const Program* const> programs, KnownPlans& known);

}  // namespace braid
