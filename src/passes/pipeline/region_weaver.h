#pragma once

#include <cstdint>
#include <vector>

#include "ir/dependencies.h"
#include "ir/program.h"
#include "passes/pipeline/weave_prices.h"

namespace braid {

/// Two neighbouring jobs: tasks [begin, middle) and [middle, end).
struct JobRegion {
  uint32_t begin = 0;
  uint32_t middle = 0;
  uint32_t end = 0;
};

/// Weaves neighbouring jobs of a program (passes/pipeline/weave.h). Prices are the same on all
/// ranks of a group.
class RegionWeaver {
 public:
  /// `model` may be null: prices are rough then. Both must outlive this object.
  RegionWeaver(const Program& program, const CostModel* model);

  /// Weaves the region if that makes it faster, and returns whether it does. Regions must not
  /// overlap.
  bool weave_region(const JobRegion& region);

  /// The new order of all tasks. Tasks that conflict keep their order.
  const std::vector<TaskId>& order() const { return order_; }

 private:
  DependencyGraph dependencies_;
  WeavePrices prices_;
  std::vector<TaskId> order_;
};

}  // namespace braid
