#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"

namespace braid {

class CostModel;

/// Durations and queues of tasks, for `weave`. They are the same on all ranks whose programs are
/// equal up to the rank, so these ranks merge their jobs in the same way.
class WeavePrices {
 public:
  /// `model` may be null. Both must outlive this object.
  WeavePrices(const Program& program, const CostModel* model);

  /// True if the prices do not come from a model.
  bool are_rough() const { return model_ == nullptr; }
  /// 0 for tasks that do nothing, and for communication that other passes hide: between data ranks
  /// and between stages.
  int64_t ns(TaskId task);
  /// Channel by kind of group. A `recv` is in the compute queue, because compute waits for it.
  uint8_t channel(TaskId task) const;

 private:
  int64_t price(TaskId task) const;

  const Program& program_;
  const CostModel* model_;  // null: rough prices
  Program priced_;          // with a model: the program as at_first_ranks gives it
  std::vector<int64_t> by_spec_;
};

}  // namespace braid
