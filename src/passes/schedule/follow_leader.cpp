#include "passes/schedule/follow_leader.h"

#include <algorithm>
#include <map>
#include <queue>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "ir/dependencies.h"
#include "ops/op.h"

namespace braid {
namespace {

/// Op, label and the last buffer: a rank may have tasks with the label of others, such as those
/// that wait for a sum of which only it has a part.
using Part = std::tuple<std::string_view, Phase, int32_t, int32_t, int32_t, std::string_view,
                        std::string_view>;

Part part_of(const Program& program, const Task& task) {
  const Label& label = task.label;
  const std::string_view site =
      label.site.valid() ? std::string_view(program.sites[label.site.index()]) : "";
  const auto ranges = program.operands_of(task);
  const std::string_view buffer =
      ranges.empty() ? "" : std::string_view(program.buffers[ranges.back().buffer.index()].name);
  return {program.spec(task).op,
          label.phase,
          label.microbatch,
          label.virtual_stage,
          label.layer,
          site,
          buffer};
}

/// A place in the leader's order, and how many of the follower's own tasks come one after the other
/// behind it.
using Place = std::pair<int64_t, int64_t>;

/// What must run before what: dependencies, and calls in the order of their places, in which the
/// other ranks make them too.
struct Before {
  std::vector<std::vector<uint32_t>> later;  // by task
  std::vector<uint32_t> num_earlier;         // by task

  Before(const Program& program, const DependencyGraph& dependencies,
         const std::vector<Place>& places)
      : later(places.size()), num_earlier(places.size()) {
    std::vector<uint32_t> calls;
    for (uint32_t task = 0; task < places.size(); ++task) {
      for (const TaskId earlier : dependencies.of(TaskId(size_t{task}))) {
        add(earlier.value, task);
      }
      if (communication_of(program.spec(program.tasks[task])) != nullptr) {
        calls.push_back(task);
      }
    }
    std::ranges::sort(calls, {}, [&](uint32_t task) { return places[task]; });
    for (size_t i = 1; i < calls.size(); ++i) {
      add(calls[i - 1], calls[i]);
    }
  }

 private:
  void add(uint32_t first, uint32_t second) {
    later[first].push_back(second);
    ++num_earlier[second];
  }
};

/// The tasks in the order of their places, as far as `Before` allows.
std::vector<TaskId> in_order(const Program& program, const DependencyGraph& dependencies,
                             const std::vector<Place>& places) {
  const Before before(program, dependencies, places);
  std::vector<uint32_t> num_missing = before.num_earlier;
  using Ready = std::pair<Place, uint32_t>;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  for (uint32_t task = 0; task < places.size(); ++task) {
    if (num_missing[task] == 0) {
      ready.emplace(places[task], task);
    }
  }
  std::vector<TaskId> order;
  while (!ready.empty()) {
    const uint32_t task = ready.top().second;
    ready.pop();
    order.emplace_back(size_t{task});
    for (const uint32_t next : before.later[task]) {
      if (--num_missing[next] == 0) {
        ready.emplace(places[next], next);
      }
    }
  }
  check(order.size() == places.size(), "rank {} cannot make its calls in the order of another rank",
        program.rank);
  return order;
}

}  // namespace

std::vector<std::optional<TaskId>> same_tasks(const Program& leader, const Program& follower) {
  std::map<Part, std::vector<TaskId>> parts;
  for (size_t i = 0; i < leader.tasks.size(); ++i) {
    parts[part_of(leader, leader.tasks[i])].emplace_back(i);
  }
  std::map<Part, size_t> num_seen;
  std::vector<std::optional<TaskId>> same;
  for (const Task& task : follower.tasks) {
    const Part part = part_of(follower, task);
    const size_t number = num_seen[part]++;
    const auto found = parts.find(part);
    same.push_back(found != parts.end() && number < found->second.size()
                       ? std::optional(found->second[number])
                       : std::nullopt);
  }
  return same;
}

std::vector<TaskId> follow_order(const Program& leader, std::span<const TaskId> order,
                                 const Program& follower) {
  check(order.size() == leader.tasks.size(), "an order of {} tasks, the leader has {}",
        order.size(), leader.tasks.size());
  std::vector<int64_t> place_of(order.size());
  for (size_t place = 0; place < order.size(); ++place) {
    place_of[order[place].index()] = static_cast<int64_t>(place);
  }
  const DependencyGraph dependencies = build_dependencies(follower);
  const std::vector<std::optional<TaskId>> same = same_tasks(leader, follower);
  std::vector<Place> places;
  for (size_t task = 0; task < same.size(); ++task) {
    Place place{-1, 0};
    for (const TaskId earlier : dependencies.of(TaskId(task))) {
      place = std::max(place, places[earlier.index()]);
    }
    places.push_back(same[task] ? Place{place_of[same[task]->index()], 0}
                                : Place{place.first, place.second + 1});
  }
  return in_order(follower, dependencies, places);
}

std::vector<TaskEngine> follow_engines(const Program& leader, std::span<const TaskEngine> engines,
                                       const Program& follower) {
  check(engines.size() == leader.tasks.size(), "engines of {} tasks, the leader has {}",
        engines.size(), leader.tasks.size());
  std::vector<TaskEngine> followed;
  for (const std::optional<TaskId> same : same_tasks(leader, follower)) {
    followed.push_back(same ? engines[same->index()] : TaskEngine::kAsIs);
  }
  return followed;
}

}  // namespace braid
