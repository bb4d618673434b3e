#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <set>
#include <vector>

#include "sim/list_plan.h"
#include "sim/list_schedule.h"

namespace braid {

/// The state of a run of the list scheduler; list_schedule.h has the rules. Time does not advance
/// until everything that can begin now has begun.
class ListRun {
 public:
  /// Both must outlive it.
  ListRun(const ListPlan& plan, const ListScheduleOptions& options);

  /// nullopt if some tasks wait forever.
  std::optional<ListSchedule> run();

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
  enum class State : uint8_t { kWaiting, kReady, kArrived, kRunning, kDone };

  /// A ready node on a stream other than compute; it represents its meeting.
  struct Ready {
    int64_t level = 0;
    uint32_t node = kNone;

    friend bool operator<(const Ready& a, const Ready& b) {
      return a.level != b.level ? a.level < b.level : a.node > b.node;
    }
  };
  struct Lane {
    int64_t busy_until_ns = -1;  // -1: free
    bool is_listed = false;      // in lanes_to_try_
    std::priority_queue<Ready> ready;
  };
  struct Rank {
    uint32_t job = 0;     // the first unfinished job, index into ListPlan::jobs
    uint32_t passed = 0;  // tasks of the spine that run before its next one
    int64_t live_bytes = 0;
    int64_t ahead_bytes = 0;  // live bytes that in program order are first used after the spine's
                              // next task
    int64_t limit_bytes = kForever;
    std::array<bool, kNumOwnUnits> is_taken{};
    bool is_listed = false;            // in ranks_to_try_
    std::set<uint32_t> floats;         // ready weight gradients
    std::vector<uint32_t> hand_overs;  // ready tasks without work
  };
  struct End {
    int64_t end_ns = 0;
    uint64_t number = 0;  // in order of begin
    uint32_t node = kNone;

    friend bool operator>(const End& a, const End& b) {
      return a.end_ns != b.end_ns ? a.end_ns > b.end_ns : a.number > b.number;
    }
  };

  void note_ready(uint32_t node);
  void arrive(uint32_t node);
  void settle();
  void try_lane(uint32_t lane);
  void try_compute(uint32_t rank);
  bool can_start(uint32_t node) const;
  bool is_all_ready(uint32_t meeting) const;
  void start(uint32_t node);
  void start_one(uint32_t node);
  void finish(uint32_t node);
  void finish_one(uint32_t node);
  void list_lane(uint32_t lane);
  void list_rank(uint32_t rank);

  uint32_t choose(uint32_t rank);
  uint32_t spine_next(uint32_t rank);
  uint32_t urgent_float(uint32_t rank, uint32_t next) const;
  int64_t wait_ns(uint32_t node) const;
  uint32_t float_in_the_way(uint32_t node) const;
  bool has_room(uint32_t node, uint32_t rank) const;
  bool fills(uint32_t node, int64_t wait_ns) const;
  uint32_t choose_float(uint32_t rank, int64_t wait_ns) const;
  uint32_t choose_ahead(uint32_t rank, uint32_t next, int64_t wait_ns);
  bool may_run_ahead(uint32_t node, uint32_t rank, int64_t peak_bytes, int64_t wait_ns) const;
  uint32_t first_undone(uint32_t job);

  int64_t new_bytes(uint32_t node) const;
  void use_buffers(uint32_t node);
  void release_buffers(uint32_t node);
  void pass_to(uint32_t rank, uint32_t task);
  bool is_free(uint32_t lane) const { return lanes_[lane].busy_until_ns < 0; }

  const ListPlan& plan_;
  const ListScheduleOptions& options_;
  int64_t now_ns_ = 0;
  uint64_t num_begun_ = 0;
  size_t num_done_ = 0;
  std::vector<State> states_;        // by node
  std::vector<uint32_t> num_waits_;  // by node: unfinished predecessors
  std::vector<int64_t> end_ns_;      // by running node
  std::vector<uint32_t> num_ready_;  // by meeting
  std::vector<uint32_t> next_;       // by job: index into the spine; everything before it is done
  std::vector<uint32_t> uses_left_;  // by buffer
  std::vector<int64_t> ahead_at_;    // by node: the part of ahead_bytes that it used first
  std::vector<Lane> lanes_;
  std::vector<Rank> ranks_;  // by program
  std::vector<uint32_t> lanes_to_try_;
  std::vector<uint32_t> ranks_to_try_;
  std::vector<uint32_t> over_;  // begun and not finished, without work
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  ListSchedule result_;
};

}  // namespace braid
