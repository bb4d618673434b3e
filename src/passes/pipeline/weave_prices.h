#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"

namespace braid {

class CostModel;

/// What tasks take and which queue they are in, for `weave`: the same on all ranks whose programs
/// are equal up to the rank, so that they merge their jobs in the same way.
class WeavePrices {
 public:
  /// `model` may be null. Both must outlive this.
  WeavePrices(const Program& program, const CostModel* model);

  /// They are not those of a model.
  bool are_rough() const { return model_ == nullptr; }
  /// 0 of tasks that do nothing and of communication that is hidden by other means: of data ranks,
  /// between stages.
  int64_t ns(TaskId task);
  /// By kind of group; compute waits for a `recv`, so that it is in its queue.
  uint8_t channel(TaskId task) const;

 private:
  int64_t price(TaskId task) const;

  const Program& program_;
  const CostModel* model_;  // null: units
  Program priced_;          // with a model: at_first_ranks
  std::vector<int64_t> by_spec_;
};

}  // namespace braid
