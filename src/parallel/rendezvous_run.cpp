#include "parallel/rendezvous_run.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

constexpr uint32_t kNone = ProgramCalls::kNone;
using Step = ProgramCalls::Step;

/// The queues of steps, by program.
std::vector<std::vector<std::vector<Step>>> queues_of(const RankCalls& calls, RunOrder order) {
  std::vector<std::vector<std::vector<Step>>> queues;
  for (const ProgramCalls& program : calls.programs()) {
    if (order == RunOrder::kStreams) {
      queues.push_back(program.streams);
      continue;
    }
    std::vector<Step> collectives;
    for (size_t i = 0; i < program.calls.size(); ++i) {
      if (program.sequence_of(program.calls[i]).kind == CallKind::kCollective) {
        collectives.push_back(
            {.task = program.calls[i].task.value, .call = static_cast<uint32_t>(i)});
      }
    }
    queues.push_back({std::move(collectives)});
  }
  return queues;
}

/// Runs one rank per class. A lane is one of its streams.
class RendezvousRun {
 public:
  RendezvousRun(const RankCalls& calls, RunOrder order)
      : calls_(calls), order_(order), queues_(queues_of(calls, order)) {
    for (uint32_t rank_class = 0; rank_class < calls.classes().size(); ++rank_class) {
      first_lane_.push_back(static_cast<uint32_t>(lanes_.size()));
      first_event_.push_back(static_cast<uint32_t>(first_waiter_.size()));
      for (const std::vector<Step>& queue : queues_[calls.classes()[rank_class].program]) {
        lanes_.push_back({.rank_class = rank_class, .steps = &queue});
      }
      first_waiter_.resize(first_waiter_.size() + calls.calls_of(rank_class).recorder.size(),
                           kNone);
    }
    first_lane_.push_back(static_cast<uint32_t>(lanes_.size()));
    is_recorded_.resize(first_waiter_.size());
    arrived_.resize(calls.meetings().size());
  }

  std::optional<std::string> run() {
    for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
      ready_.push_back(lane);
    }
    while (!ready_.empty()) {
      const uint32_t lane = ready_.back();
      ready_.pop_back();
      advance(lane);
    }
    for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
      if (!is_done(lanes_[lane])) {
        return describe_from(lane);
      }
    }
    return std::nullopt;
  }

 private:
  struct Lane {
    uint32_t rank_class = 0;
    const std::vector<Step>* steps = nullptr;
    uint32_t next = 0;
    bool has_arrived = false;      // waits at the meeting of its next step
    uint32_t next_waiter = kNone;  // next lane in the list of the event that it waits for
  };

  static bool is_done(const Lane& lane) { return lane.next == lane.steps->size(); }
  const ProgramCalls& calls_of(const Lane& lane) const { return calls_.calls_of(lane.rank_class); }
  const Task& task_of(const Lane& lane) const {
    return calls_of(lane).program->tasks[(*lane.steps)[lane.next].task];
  }

  void advance(uint32_t id) {
    Lane& lane = lanes_[id];
    while (!is_done(lane) && !lane.has_arrived) {
      if (const auto event = missing_event(lane)) {
        const uint32_t index = first_event_[lane.rank_class] + event->value;
        lane.next_waiter = std::exchange(first_waiter_[index], id);
        return;
      }
      const uint32_t call = (*lane.steps)[lane.next].call;
      if (call == kNone) {
        finish(lane);
      } else {
        arrive(id, meeting_of(lane, call));
      }
    }
  }

  std::optional<EventId> missing_event(const Lane& lane) const {
    if (order_ == RunOrder::kStreams) {
      for (const EventId event : calls_of(lane).program->waits_of(task_of(lane))) {
        if (!is_recorded_[first_event_[lane.rank_class] + event.value]) {
          return event;
        }
      }
    }
    return std::nullopt;
  }

  uint32_t meeting_of(const Lane& lane, uint32_t call) const {
    return calls_.meeting_of(lane.rank_class, calls_of(lane).calls[call].sequence);
  }

  /// The last lane to arrive completes the call for all.
  void arrive(uint32_t id, uint32_t meeting) {
    lanes_[id].has_arrived = true;
    std::vector<uint32_t>& arrived = arrived_[meeting];
    arrived.push_back(id);
    if (arrived.size() < calls_.meetings()[meeting].ends.size()) {
      return;
    }
    for (const uint32_t other : std::exchange(arrived, {})) {
      lanes_[other].has_arrived = false;
      finish(lanes_[other]);
      if (other != id) {
        ready_.push_back(other);
      }
    }
  }

  void finish(Lane& lane) {
    const EventId event = task_of(lane).record;
    ++lane.next;
    if (order_ == RunOrder::kStreams && event.valid()) {
      const uint32_t index = first_event_[lane.rank_class] + event.value;
      is_recorded_[index] = true;
      for (uint32_t waiter = std::exchange(first_waiter_[index], kNone); waiter != kNone;) {
        ready_.push_back(waiter);
        waiter = std::exchange(lanes_[waiter].next_waiter, kNone);
      }
    }
  }

  // The functions below describe a run that has deadlocked.

  /// A lane of a specific rank of the class, which need not be the class's first rank.
  struct Place {
    int rank = 0;
    uint32_t lane = 0;
  };

  std::string describe_from(uint32_t lane) const {
    constexpr size_t kMaxShown = 12;
    std::set<uint32_t> seen;
    std::vector<std::string> parts;
    std::optional<Place> next = Place{calls_.first_rank(lanes_[lane].rank_class), lane};
    while (next && parts.size() < kMaxShown && seen.insert(next->lane).second) {
      auto [text, holder] = describe(*next);
      parts.push_back(std::move(text));
      next = holder;
    }
    const bool is_circle = next && seen.contains(next->lane);
    return fmt::format("deadlock{}: {}{}",
                       order_ == RunOrder::kStreams ? "" : " if collectives keep program order",
                       join(parts, "; "), is_circle ? "; and so round" : "; ...");
  }

  std::string name(const Place& place, const Task& task) const {
    const Program& program = *calls_of(lanes_[place.lane]).program;
    const std::string stream =
        order_ == RunOrder::kStreams
            ? fmt::format(" on stream {}", program.streams[task.stream.index()].name)
            : "";
    return fmt::format(
        "rank {} {}{}", place.rank,
        describe_call(program, TaskId(static_cast<size_t>(&task - program.tasks.data()))), stream);
  }

  /// Returns what the lane's next step waits for, and the lane that must progress first.
  std::pair<std::string, std::optional<Place>> describe(const Place& place) const {
    const Lane& lane = lanes_[place.lane];
    const std::string self = name(place, task_of(lane));
    if (!lane.has_arrived) {
      const EventId event = missing_event(lane).value();
      const Task& recorder = calls_of(lane).program->tasks[calls_of(lane).recorder[event.index()]];
      const Place next{place.rank, first_lane_[lane.rank_class] + recorder.stream.value};
      return {fmt::format("{} waits for event e{} of {}", self, event.value, name(next, recorder)),
              next};
    }
    const uint32_t call = (*lane.steps)[lane.next].call;
    const uint32_t sequence = calls_of(lane).calls[call].sequence;
    const std::vector<int> missing = missing_ranks(place, sequence);
    std::vector<std::string> numbers;
    for (size_t i = 0; i < std::min<size_t>(missing.size(), 8); ++i) {
      numbers.push_back(std::to_string(missing[i]));
    }
    return {fmt::format("{} waits in group {} for rank{} {}{}", self,
                        calls_of(lane).group_of(calls_of(lane).sequences[sequence]).name,
                        missing.size() == 1 ? "" : "s", join(numbers, ", "),
                        missing.size() > 8 ? ", ..." : ""),
            place_of_next_call(missing.front(), meeting_of(lane, call), place.lane)};
  }

  /// Ranks that take part in the lane's call and have not arrived.
  std::vector<int> missing_ranks(const Place& place, uint32_t sequence) const {
    const Lane& lane = lanes_[place.lane];
    const ProgramCalls::Sequence& it = calls_of(lane).sequences[sequence];
    std::vector<int> ranks = calls_.ranks_at(place.rank, sequence);
    if (it.kind != CallKind::kCollective) {
      return {it.kind == CallKind::kSend ? ranks[1] : ranks[0]};
    }
    std::set<uint32_t> arrived;
    for (const uint32_t other : arrived_[calls_.meeting_of(lane.rank_class, sequence)]) {
      arrived.insert(lanes_[other].rank_class);
    }
    std::erase_if(ranks, [&](int rank) { return arrived.contains(calls_.class_of(rank)); });
    return ranks;
  }

  /// The lane of the rank that has its next call at the meeting.
  std::optional<Place> place_of_next_call(int rank, uint32_t meeting, uint32_t from) const {
    const uint32_t rank_class = calls_.class_of(rank);
    for (uint32_t id = first_lane_[rank_class]; id < first_lane_[rank_class + 1]; ++id) {
      const Lane& lane = lanes_[id];
      for (size_t i = lane.next; i < lane.steps->size(); ++i) {
        const uint32_t call = (*lane.steps)[i].call;
        // If a rank sends a message to itself, the other end is on another lane or later on this
        // one.
        if (call != kNone && meeting_of(lane, call) == meeting && (id != from || i != lane.next)) {
          return Place{rank, id};
        }
      }
    }
    return std::nullopt;
  }

  const RankCalls& calls_;
  RunOrder order_;
  std::vector<std::vector<std::vector<Step>>> queues_;  // by program and stream
  std::vector<Lane> lanes_;
  std::vector<uint32_t> first_lane_;    // by class, plus one end entry
  std::vector<uint32_t> first_event_;   // by class
  std::vector<bool> is_recorded_;       // by class and event
  std::vector<uint32_t> first_waiter_;  // by class and event: first lane in its list of waiters
  std::vector<std::vector<uint32_t>> arrived_;  // by meeting: lanes that have arrived
  std::vector<uint32_t> ready_;
};

}  // namespace

std::optional<std::string> find_deadlock(const RankCalls& calls, RunOrder order) {
  return RendezvousRun(calls, order).run();
}

}  // namespace braid
