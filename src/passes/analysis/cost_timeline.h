#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "ir/dependencies.h"
#include "ir/program.h"
#include "passes/tensor/split_task.h"
#include "sim/cost_model.h"

namespace braid {

/// Durations of a program's tasks and of pieces of them. Asks the cost model once per spec or
/// piece. The durations are the same on all ranks of a tensor group (rank_independent.h).
class StepPrices {
 public:
  /// Where a task runs, as far as a pass can tell before `assign_streams`.
  enum class Place : uint8_t {
    kDevice,  ///< runs on the device, one task at a time, in program order
    kBeside,  ///< communication on a separate stream, in that stream's order
    kLater,   ///< gets its own stream from a later pass, or does nothing; it takes no time here
  };
  struct Price {
    Place place = Place::kLater;
    bool is_compute = false;
    int64_t ns = 0;
    /// Speed of the task while tensor communication runs, as a fraction of kFullRate. The cost
    /// model measured it, per kind of task, beside collectives at full link rate.
    int64_t shared_rate = kFullRate;
  };
  static constexpr int64_t kFullRate = int64_t{1} << 16;

  /// Both must outlive this object. Throws InternalError for an op that the model cannot price.
  StepPrices(const Program& program, const CostModel& model);

  const Price& of(uint32_t task) const { return prices_[program_.tasks[task].spec.index()]; }
  /// Duration of a piece that runs alone.
  int64_t piece_ns(uint32_t task, const SplitRange& range);

 private:
  Price price_of(uint32_t task) const;

  const Program& program_;
  const CostModel& model_;
  const Program priced_;       // the program as at_first_ranks gives it
  std::vector<Price> prices_;  // by spec
  std::map<std::tuple<uint32_t, int64_t, int64_t>, int64_t> pieces_;
};

/// Simulates the step of one rank. The caller adds tasks, or pieces of tasks, in order; the
/// timeline computes when each one starts and ends. Compute runs one task at a time and is slowed
/// by communication beside it. Other ranks are never waited for. The items added last can be
/// removed again.
class CostTimeline {
 public:
  struct Item {
    uint32_t task = 0;
    SplitRange range{};  ///< empty: the whole task
    int64_t ns = 0;      ///< duration when it runs alone
    int64_t start_ns = 0;
    int64_t end_ns = 0;
  };

  /// All must outlive this object.
  CostTimeline(const Program& program, const DependencyGraph& dependencies,
               const StepPrices& prices);

  void push(uint32_t task, const SplitRange& range, int64_t ns);
  /// Removes the last items until `size` are left. Returns the removed items in order.
  std::vector<Item> pop_to(size_t size);

  const std::vector<Item>& items() const { return items_; }
  /// End of the task and all of its pieces; 0: not added yet.
  int64_t done_ns(uint32_t task) const { return done_ns_[task]; }
  /// Latest end of the added tasks that this task depends on.
  int64_t ready_ns(uint32_t task) const;
  /// Time at which the device has finished all its tasks added so far.
  int64_t device_free_ns() const { return device_free_ns_; }
  /// Start time of the task if it were added next.
  int64_t start_ns(uint32_t task) const;

 private:
  struct Undo {
    int64_t free_ns = 0;  // of the item's queue before the item was added
    int64_t done_ns = 0;  // of the item's task before the item was added
  };

  int64_t& free_of(uint32_t task);
  int64_t compute_end_ns(int64_t start_ns, int64_t work_ns, int64_t shared_rate) const;

  const Program& program_;
  const DependencyGraph& dependencies_;
  const StepPrices& prices_;
  std::vector<Item> items_;
  std::vector<Undo> undo_;          // by item
  std::vector<size_t> beside_;      // indices of items of communication beside compute
  std::vector<int64_t> done_ns_;    // by task
  std::vector<int64_t> stream_ns_;  // by stream
  int64_t device_free_ns_ = 0;
};

}  // namespace braid
