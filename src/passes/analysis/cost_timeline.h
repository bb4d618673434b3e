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

/// What tasks of a program, and pieces of them, take. Each question is asked once. The same on all
/// ranks of a tensor group (rank_independent.h).
class StepPrices {
 public:
  /// Where a task runs, as far as a pass can tell in front of `assign_streams`.
  enum class Place : uint8_t {
    kDevice,  ///< one at a time, in program order
    kBeside,  ///< communication on a stream of its own, in the order of that stream
    kLater,   ///< is given a stream of its own by a later pass, or does nothing: no time here
  };
  struct Price {
    Place place = Place::kLater;
    bool is_compute = false;
    int64_t ns = 0;
    /// Rate beside communication, in parts of kFullRate: the measured one of this kind of task
    /// beside collectives at a link's full rate.
    int64_t shared_rate = kFullRate;
  };
  static constexpr int64_t kFullRate = int64_t{1} << 16;

  /// Both must outlive it. Throws InternalError for an op that the model cannot price.
  StepPrices(const Program& program, const CostModel& model);

  const Price& of(uint32_t task) const { return prices_[program_.tasks[task].spec.index()]; }
  /// Of a piece alone.
  int64_t piece_ns(uint32_t task, const SplitRange& range);

 private:
  Price price_of(uint32_t task) const;

  const Program& program_;
  const CostModel& model_;
  const Program priced_;       // at_first_ranks
  std::vector<Price> prices_;  // by spec
  std::map<std::tuple<uint32_t, int64_t, int64_t>, int64_t> pieces_;
};

/// One rank's step by itself, as far as it has been put in: when each task, or piece of one, begins
/// and ends. Compute runs one task at a time and is slowed by what communicates beside it; other
/// ranks are never waited for. What was put in last can be taken out again.
class CostTimeline {
 public:
  struct Item {
    uint32_t task = 0;
    SplitRange range{};  ///< empty: the whole task
    int64_t ns = 0;      ///< alone
    int64_t start_ns = 0;
    int64_t end_ns = 0;
  };

  /// All must outlive it.
  CostTimeline(const Program& program, const DependencyGraph& dependencies,
               const StepPrices& prices);

  void push(uint32_t task, const SplitRange& range, int64_t ns);
  /// Takes items out until `size` are left, and returns them in their order.
  std::vector<Item> pop_to(size_t size);

  const std::vector<Item>& items() const { return items_; }
  /// When the task, or all of its pieces, ends; 0: it has not been put in.
  int64_t done_ns(uint32_t task) const { return done_ns_[task]; }
  /// When all that the task depends on has ended; of what has been put in.
  int64_t ready_ns(uint32_t task) const;
  /// When the device has done all compute so far.
  int64_t device_free_ns() const { return device_free_ns_; }
  /// When the task would begin if it were next.
  int64_t start_ns(uint32_t task) const;

 private:
  struct Undo {
    int64_t free_ns = 0;  // of the item's queue before it
    int64_t done_ns = 0;  // of its task
  };

  int64_t& free_of(uint32_t task);
  int64_t compute_end_ns(int64_t start_ns, int64_t work_ns, int64_t shared_rate) const;

  const Program& program_;
  const DependencyGraph& dependencies_;
  const StepPrices& prices_;
  std::vector<Item> items_;
  std::vector<Undo> undo_;          // by item
  std::vector<size_t> beside_;      // items of communication beside compute
  std::vector<int64_t> done_ns_;    // by task
  std::vector<int64_t> stream_ns_;  // by stream
  int64_t device_free_ns_ = 0;
};

}  // namespace braid
