#include "sim/critical_path.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>

#include "base/errors.h"
#include "parallel/rank_calls.h"
#include "sim/op_family.h"
#include "sim/sim_plan.h"
#include "sim/task_prices.h"

namespace braid {
namespace {

/// A task of a class of alike ranks.
struct Place {
  uint32_t rank_class = 0;
  uint32_t task = 0;
};

class PathFinder {
 public:
  PathFinder(const MatchedPrograms& programs, const CostModel& model, const SimResult& result,
             double routed_load, const PriceChanges& changes)
      : calls_(programs.calls()),
        model_(model),
        result_(result),
        pricer_(calls_, model, routed_load, changes),
        classes_(calls_.classes().size()),
        before_(calls_.programs().size()) {}

  std::vector<PathTask> find() {
    std::vector<PathTask> path;
    for (std::optional<Place> at = last_to_end(); at;) {
      const Begin begin = price_of(*at).unit == SimUnit::kLinks
                              ? begin_of_communication(*at)
                              : Begin{*at, times_of(*at).start_ns};
      if (times_of(begin.place).end_ns > begin.ns) {
        path.push_back(path_task(begin));
      }
      at = cause_of(begin);
    }
    std::ranges::reverse(path);
    return path;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  /// What is known of a class, as soon as the path leads through it.
  struct ClassFacts {
    std::vector<TaskPrice> prices;  ///< by spec
    /// By unit, the tasks that had it, in order; empty until asked for.
    std::array<std::vector<uint32_t>, kNumOwnUnits> users;
  };
  /// When a task began, and for communication its call on the rank that was ready for it last.
  struct Begin {
    Place place;
    int64_t ns = 0;
  };
  /// The task for which another one was ready last, if any, and the time when it ended.
  struct Earlier {
    int64_t end_ns = 0;
    std::optional<Place> place;
  };

  const Program& program_of(uint32_t rank_class) const {
    return *calls_.calls_of(rank_class).program;
  }
  const TaskTimes& times_of(Place at) const {
    return result_.times[result_.ranks[at.rank_class].first_time + at.task];
  }
  const Task& task_at(Place at) const { return program_of(at.rank_class).tasks[at.task]; }

  ClassFacts& facts_of(uint32_t rank_class) {
    std::unique_ptr<ClassFacts>& facts = classes_[rank_class];
    if (!facts) {
      facts = std::make_unique<ClassFacts>();
      facts->prices = pricer_.prices_of(rank_class);
    }
    return *facts;
  }
  const TaskPrice& price_of(Place at) {
    return facts_of(at.rank_class).prices[task_at(at).spec.index()];
  }

  /// By task of the class's program: the task before it on its stream, or kNone.
  const std::vector<uint32_t>& before_of(uint32_t rank_class) {
    const Program& program = program_of(rank_class);
    std::vector<uint32_t>& before = before_[calls_.classes()[rank_class].program];
    if (before.empty()) {
      std::vector<uint32_t> last(program.streams.size(), kNone);
      before.reserve(program.tasks.size());
      for (size_t task = 0; task < program.tasks.size(); ++task) {
        uint32_t& of_stream = last[program.tasks[task].stream.index()];
        before.push_back(of_stream);
        of_stream = static_cast<uint32_t>(task);
      }
    }
    return before;
  }

  std::optional<Place> last_to_end() const {
    for (uint32_t rank_class = 0; rank_class < result_.ranks.size(); ++rank_class) {
      const auto num_tasks = static_cast<uint32_t>(program_of(rank_class).tasks.size());
      for (uint32_t task = num_tasks; task-- > 0;) {
        if (times_of({rank_class, task}).end_ns == result_.step_ns) {
          return Place{rank_class, task};
        }
      }
    }
    return std::nullopt;  // no rank has a task
  }

  Earlier ready_after(Place at) {
    Earlier latest;
    const auto consider = [&](uint32_t task) {
      const Place place{at.rank_class, task};
      if (!latest.place || times_of(place).end_ns > latest.end_ns) {
        latest = {times_of(place).end_ns, place};
      }
    };
    if (const uint32_t before = before_of(at.rank_class)[at.task]; before != kNone) {
      consider(before);
    }
    for (const EventId event : program_of(at.rank_class).waits_of(task_at(at))) {
      consider(calls_.calls_of(at.rank_class).recorder[event.index()]);
    }
    return latest;
  }

  Begin begin_of_communication(Place at) {
    const RankCalls::Meeting& meeting = calls_.meetings()[price_of(at).meeting];
    const size_t number = number_of_call(meeting, at);
    Place last = at;
    int64_t last_ns = ready_after(at).end_ns;
    int64_t begin_ns = times_of(at).start_ns;
    for (const RankCalls::End& end : meeting.ends) {
      begin_ns = std::max(begin_ns, times_of(call_at(end, number)).start_ns);
    }
    for (auto end = meeting.ends.begin(); last_ns < begin_ns && end != meeting.ends.end(); ++end) {
      const Place other = call_at(*end, number);
      if (const int64_t ns = ready_after(other).end_ns; ns > last_ns) {
        last = other;
        last_ns = ns;
      }
    }
    check(last_ns == begin_ns, "a communication of {} began at {} ns, and its last rank came at {}",
          meeting.group, begin_ns, last_ns);
    return {last, begin_ns};
  }

  Place call_at(const RankCalls::End& end, size_t number) const {
    const ProgramCalls::Call& call =
        calls_.calls_of(end.rank_class).calls[calls_.calls_at(end)[number]];
    return {end.rank_class, call.task.value};
  }

  /// Of a meeting's calls, in order. A rank that sends to itself is at both ends.
  size_t number_of_call(const RankCalls::Meeting& meeting, Place at) const {
    const std::vector<ProgramCalls::Call>& calls = calls_.calls_of(at.rank_class).calls;
    for (const RankCalls::End& end : meeting.ends) {
      if (end.rank_class != at.rank_class) {
        continue;
      }
      const std::vector<uint32_t>& numbers = calls_.calls_at(end);
      const auto found = std::ranges::lower_bound(
          numbers, at.task, {}, [&](uint32_t call) { return calls[call].task.value; });
      if (found != numbers.end() && calls[*found].task.value == at.task) {
        return static_cast<size_t>(found - numbers.begin());
      }
    }
    throw_internal_error("task {} is in no call of {}", at.task, meeting.group);
  }

  PathTask path_task(const Begin& begin) {
    const TaskPrice& price = price_of(begin.place);
    const int64_t end_ns = times_of(begin.place).end_ns;
    const int64_t alone_ns = std::min(price.work_ns, end_ns - begin.ns);
    return {.rank = begin.place.rank_class,
            .task = begin.place.task,
            .begin_ns = begin.ns,
            .end_ns = end_ns,
            .alone_ns = alone_ns,
            .latency_ns = std::min(alone_ns, latency_of(price))};
  }

  int64_t latency_of(const TaskPrice& price) const {
    if (price.unit != SimUnit::kLinks) {
      return computes_on_device(price.family) ? model_.launch_ns() : 0;
    }
    if (price.link.is_limited()) {
      return price.link.latency_ns;
    }
    const int64_t bytes_part = price.demand.bytes_part;
    const int64_t whole = price.work_ns / kFullRate * bytes_part;
    return price.work_ns - whole -
           (price.work_ns % kFullRate * bytes_part + kFullRate / 2) / kFullRate;
  }

  /// The task whose end let this one begin; none at the start of the step.
  std::optional<Place> cause_of(const Begin& begin) {
    const Earlier earlier = ready_after(begin.place);
    return earlier.end_ns == begin.ns ? earlier.place : user_before(begin);
  }

  /// The task that had the unit of its device until then. One that took no time at that moment
  /// explains nothing.
  Place user_before(const Begin& begin) {
    const auto [rank_class, task] = begin.place;
    const SimUnit unit = price_of(begin.place).unit;
    check(static_cast<size_t>(unit) < kNumOwnUnits, "task {} waited for no unit of its device",
          task);
    const std::vector<uint32_t>& users = users_of(rank_class, unit);
    const auto next = std::ranges::lower_bound(users, begin.ns, {}, [&](uint32_t user) {
      return times_of({begin.place.rank_class, user}).start_ns;
    });
    check(next != users.begin(), "nothing had the unit before task {}", task);
    const Place before{rank_class, *std::prev(next)};
    check(times_of(before).end_ns == begin.ns,
          "task {} began at {} ns, and the one that had its unit ended at {}", task, begin.ns,
          times_of(before).end_ns);
    return before;
  }

  const std::vector<uint32_t>& users_of(uint32_t rank_class, SimUnit unit) {
    std::vector<uint32_t>& users = facts_of(rank_class).users[static_cast<size_t>(unit)];
    if (users.empty()) {
      const auto num_tasks = static_cast<uint32_t>(program_of(rank_class).tasks.size());
      for (uint32_t task = 0; task < num_tasks; ++task) {
        if (price_of({rank_class, task}).unit == unit) {
          users.push_back(task);
        }
      }
      // Of those that begin at once, only the last takes time.
      std::ranges::stable_sort(users, [&](uint32_t a, uint32_t b) {
        const TaskTimes& left = times_of({rank_class, a});
        const TaskTimes& right = times_of({rank_class, b});
        return left.start_ns != right.start_ns ? left.start_ns < right.start_ns
                                               : left.end_ns < right.end_ns;
      });
    }
    return users;
  }

  const RankCalls& calls_;
  const CostModel& model_;
  const SimResult& result_;
  TaskPricer pricer_;
  std::vector<std::unique_ptr<ClassFacts>> classes_;
  std::vector<std::vector<uint32_t>> before_;  // by program
};

}  // namespace

std::vector<PathTask> critical_path(const MatchedPrograms& programs, const CostModel& model,
                                    const SimResult& result, double routed_load,
                                    const PriceChanges& changes) {
  return PathFinder(programs, model, result, routed_load, changes).find();
}

}  // namespace braid
