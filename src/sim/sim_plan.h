#pragma once

#include <cstdint>
#include <vector>

#include "parallel/rank_calls.h"
#include "sim/contention.h"
#include "sim/cost_model.h"
#include "sim/price_changes.h"

namespace braid {

/// The unit of its device that a task occupies while it runs.
enum class SimUnit : uint8_t {
  kCompute,   ///< the device
  kToDevice,  ///< its copy engine from the host
  kToHost,    ///< its copy engine to the host
  kLinks,     ///< no unit of its own; it waits for the other ranks
  kNothing,   ///< takes no time
};
inline constexpr size_t kNumOwnUnits = 3;  ///< the first units, which run one task at a time

/// How a compute task shares the SMs of its device with exchanges of rows (ops/expert_exchange.h).
enum class SmUse : uint8_t {
  kShared,  ///< an exchange begins beside it: its blocks are short, or it leaves SMs free
  kAll,     ///< it fills all SMs: an exchange that comes later waits to its end
};

/// The price of tasks of one spec on ranks of one class.
struct TaskPrice {
  int64_t work_ns = 0;  ///< alone
  SimUnit unit = SimUnit::kNothing;
  OpFamily family = OpFamily::kNothing;
  SmUse sm_use = SmUse::kShared;
  bool sends = false;
  bool receives = false;
  uint32_t meeting = RankCalls::kNone;  ///< for kLinks: index into RankCalls::meetings
  CommDemand demand;
  // For communication over emulated links:
  LinkTime link;  ///< the time of its link
  GroupKind link_kind = GroupKind::kWorld;
  int64_t own_ns = 0;  ///< lower bound of its duration
};

/// The longest task: 19 hours, so that its work fits into 64 bits.
inline constexpr int64_t kMaxWorkNs = int64_t{1} << 46;

/// The facts that a simulation needs, computed once. A class represents all of its ranks, as in
/// `RankCalls`; a lane is a stream of a class.
class SimPlan {
 public:
  struct Class {
    const Program* program = nullptr;
    uint32_t first_lane = 0;
    uint32_t num_lanes = 0;
    uint32_t first_event = 0;
    uint32_t first_running = 0;  ///< index of the slots for all meetings that may run at once on a
                                 ///< rank
    size_t first_task = 0;
    const TaskPrice* prices = nullptr;  ///< by spec
  };
  struct Lane {
    uint32_t rank_class = 0;
    int priority = 0;
    const uint32_t* tasks = nullptr;  ///< in program order
    uint32_t num_tasks = 0;
  };

  /// `calls` and `model` must outlive it. Throws InternalError for what the model cannot price.
  /// `routed_load`: that of RoutedRows.
  SimPlan(const RankCalls& calls, const CostModel& model, double routed_load,
          const PriceChanges& changes);

  const std::vector<Class>& classes() const { return classes_; }
  const std::vector<Lane>& lanes() const { return lanes_; }
  /// By meeting, and one more entry: index of the list of lanes that have arrived.
  const std::vector<uint32_t>& first_arrival() const { return first_arrival_; }
  const ContentionTable& contention() const { return contention_; }
  size_t num_meetings() const { return first_arrival_.size() - 1; }
  size_t num_tasks() const { return num_tasks_; }
  size_t num_events() const { return num_events_; }
  size_t num_running() const { return num_running_; }

 private:
  struct Streams {
    std::vector<uint32_t> tasks;  ///< stream by stream
    std::vector<uint32_t> first;  ///< by stream, and one more entry
  };
  static Streams streams_of(const Program& program);
  void add_class(const RankCalls& calls, uint32_t rank_class, size_t first_price);

  ContentionTable contention_;
  std::vector<Streams> streams_;   // by program
  std::vector<TaskPrice> prices_;  // by class and spec
  std::vector<Class> classes_;
  std::vector<Lane> lanes_;
  std::vector<uint32_t> first_arrival_;
  size_t num_tasks_ = 0;
  uint32_t num_events_ = 0;
  uint32_t num_running_ = 0;
};

}  // namespace braid
