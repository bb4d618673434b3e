#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/end_queue.h"
#include "sim/sim_plan.h"
#include "sim/simulate.h"

namespace braid {

/// The state of a simulation; simulate.h has the rules. Time does not advance until everything that
/// can begin now has begun: lanes advance as far as possible, then each free unit takes the best
/// waiting task, and so on until nothing begins. Such a round depends only on the state at its
/// beginning, so the order in which lanes are visited does not matter.
class SimRun {
 public:
  /// `plan` must outlive it.
  explicit SimRun(const SimPlan& plan);

  /// Fills `times` (unless it is empty), `step_ns`, and `end_ns` and `compute_ns` of the ranks of a
  /// result, which has entries for them. False if some tasks wait forever.
  bool run(const SimOptions& options, SimResult& result);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  enum class LaneState : uint8_t { kBlocked, kQueued, kBusy };

  struct Lane {
    int64_t start_ns = 0;   // of its task
    uint32_t next = 0;      // index into its tasks
    uint32_t num_over = 0;  // waits of that task that have ended
    uint32_t next_waiter = kNone;
    LaneState state = LaneState::kBlocked;
    SimUnit unit = SimUnit::kNothing;  // unit for which it is queued
    bool is_held = false;              // an exchange of rows that waits for SMs
  };
  struct Unit {
    uint32_t lane = kNone;  // lane that occupies it
    uint32_t num_queued = 0;
    uint32_t last_queued = kNone;
    bool is_listed = false;  // in free_units_
  };
  struct Device {
    std::array<Unit, kNumOwnUnits> units;
    // The times when the lanes of emulated links become free, by kind of group, out and in.
    std::array<std::array<int64_t, 2>, LinkOptions::kNumKinds> lane_free_ns{};
    int sms = 0;  // sending SMs, without those of exchanges of rows
    int row_exchanges = 0;
    int num_held = 0;          // lanes
    uint32_t num_running = 0;  // lanes that communicate
    bool is_changed = false;   // listed in changed_
    bool links_changed = false;
  };
  /// Work that takes time: a task on a unit, or a meeting.
  struct Work {
    int64_t left = 0;   // at updated_ns, in nanoseconds x kFullRate
    int64_t bytes = 0;  // of a communication: what is left when its bytes begin to flow
    int64_t until = 0;  // what is left at its next event: 0 at its end
    int64_t updated_ns = 0;
    int64_t rate = 0;
  };

  void reset();
  void settle();
  void advance(uint32_t lane);
  bool waits_are_over(uint32_t lane, const Task& task);
  void finish_task(uint32_t lane);
  void wake_waiters(uint32_t event);

  void queue(uint32_t lane, SimUnit unit);
  void list_unit(uint32_t unit);
  void take_units();
  void take_unit(uint32_t unit);
  uint32_t best_queued(uint32_t unit) const;
  void release_unit(uint32_t unit);

  void arrive(uint32_t lane, uint32_t meeting);
  void hold_exchanges();
  void release_held(uint32_t rank_class);
  void begin_meeting(uint32_t meeting);
  void begin_transfers();
  int64_t transfer_ns(uint32_t meeting);
  void end_meeting(uint32_t meeting);
  void occupy_links(uint32_t lane, int sign);

  void mark_changed(uint32_t rank_class, bool links);
  void update_rates();
  void update_units(uint32_t rank_class);
  void update_meeting(uint32_t meeting);
  bool shares_links(uint32_t meeting) const;
  bool has_company(uint32_t lane) const;
  int64_t meeting_rate(uint32_t meeting);
  int64_t rate_on_device(uint32_t lane);
  int64_t link_rate(uint32_t lane);
  int64_t share_of_link(uint32_t rank_class, size_t kind, size_t direction);
  bool moves_bytes(uint32_t meeting) const;
  int64_t left_of(const Work& work) const;
  void flow(uint32_t meeting);
  void set_rate(uint32_t work, int64_t rate, int64_t until = 0);
  void begin_work(uint32_t work, int64_t work_ns, int64_t bytes_part = 0);

  const SimPlan::Lane& facts(uint32_t lane) const { return plan_.lanes()[lane]; }
  const SimPlan::Class& class_of(uint32_t lane) const {
    return plan_.classes()[facts(lane).rank_class];
  }
  uint32_t task_of(uint32_t lane) const { return facts(lane).tasks[lanes_[lane].next]; }
  const TaskPrice& price_of(uint32_t lane) const {
    const SimPlan::Class& its_class = class_of(lane);
    return its_class.prices[its_class.program->tasks[task_of(lane)].spec.index()];
  }
  std::array<int64_t, 2>& lanes_of(uint32_t lane) {
    return devices_[facts(lane).rank_class]
        .lane_free_ns[static_cast<size_t>(price_of(lane).link_kind)];
  }
  Unit& unit_of(uint32_t unit) { return devices_[unit / kNumOwnUnits].units[unit % kNumOwnUnits]; }
  uint32_t num_units() const { return static_cast<uint32_t>(devices_.size() * kNumOwnUnits); }
  std::span<const uint32_t> running_on(uint32_t rank_class) const {
    return {running_.data() + plan_.classes()[rank_class].first_running,
            devices_[rank_class].num_running};
  }
  std::span<const uint32_t> arrived(uint32_t meeting) const {
    return {arrived_.data() + plan_.first_arrival()[meeting], num_arrived_[meeting]};
  }

  const SimPlan& plan_;
  SimOptions options_;
  SimResult* result_ = nullptr;
  int64_t now_ns_ = 0;
  std::vector<Lane> lanes_;
  std::vector<Device> devices_;         // by class
  std::vector<uint8_t> is_recorded_;    // by event of each class
  std::vector<uint32_t> first_waiter_;  // by event of each class: a lane
  std::vector<uint32_t> arrived_;       // lanes, by meeting
  std::vector<uint32_t> num_arrived_;
  std::vector<uint32_t> running_;  // lanes that communicate, by class
  std::vector<Work> work_;         // by unit of each class, then by meeting
  EndQueue ends_;                  // of work_
  std::vector<uint32_t> ready_;    // lanes
  std::vector<uint32_t> free_units_;
  std::vector<uint32_t> taking_;
  std::vector<uint32_t> exchanges_;  // lanes that reached an exchange of rows now
  std::vector<uint32_t> transfers_;  // meetings that begin now, over emulated links
  std::vector<uint32_t> changed_;    // classes
  std::vector<uint32_t> stale_;      // meetings
  std::vector<uint8_t> is_stale_;
  std::vector<int64_t> loads_;  // of one link
};

}  // namespace braid
