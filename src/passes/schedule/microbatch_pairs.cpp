#include "passes/schedule/microbatch_pairs.h"

#include <algorithm>
#include <compare>
#include <functional>
#include <limits>
#include <queue>

#include "ir/dependencies.h"
#include "passes/analysis/job_spans.h"
#include "passes/pipeline/region_weaver.h"

namespace braid {
namespace {

/// By job: the number of its pair. Empty if jobs do not come in pairs.
std::vector<int64_t> pairs_of_jobs(const JobSpans& spans) {
  const int64_t num_microbatches =
      std::ranges::count(spans.jobs(), false, &JobSpans::JobSpan::is_backward);
  if (num_microbatches < 2 || 2 * num_microbatches != std::ssize(spans.jobs())) {
    return {};
  }
  int64_t num_forwards = 0;
  int64_t num_backwards = 0;
  std::vector<int64_t> pairs;
  for (const JobSpans::JobSpan& job : spans.jobs()) {
    pairs.push_back(job.is_backward ? std::min(++num_backwards, num_microbatches - 1)
                                    : std::max<int64_t>(num_forwards++ - 1, 0));
  }
  return pairs;
}

/// Place of a task in the wanted order: pair by pair, and in each pair one job after the other.
struct Place {
  int64_t pair = std::numeric_limits<int64_t>::max();  ///< the default is behind all jobs
  uint32_t job = 0;
  uint32_t task = 0;

  friend auto operator<=>(const Place&, const Place&) = default;
};

std::vector<Place> wanted_places(const Program& program, const JobSpans& spans,
                                 const std::vector<int64_t>& pairs) {
  std::vector<Place> places(program.tasks.size());
  Place next;  // of the first task of a job from here on
  for (auto task = static_cast<uint32_t>(places.size()); task-- > 0;) {
    const uint32_t job = spans.job_of(task);
    if (job != JobSpans::kNone) {
      next = {.pair = pairs[job], .job = job};
    }
    places[task] = next;
    places[task].task = task;
  }
  return places;
}

/// Sorts tasks by place, as far as dependencies allow.
std::vector<TaskId> in_order_of(const Program& program, const std::vector<Place>& places) {
  const DependencyGraph dependencies = build_dependencies(program);
  std::vector<uint32_t> num_left(places.size());
  std::vector<std::vector<uint32_t>> dependents(places.size());
  for (uint32_t task = 0; task < places.size(); ++task) {
    const auto earlier = dependencies.of(TaskId(size_t{task}));
    num_left[task] = static_cast<uint32_t>(earlier.size());
    for (const TaskId it : earlier) {
      dependents[it.index()].push_back(task);
    }
  }
  std::priority_queue<Place, std::vector<Place>, std::greater<>> ready;
  for (uint32_t task = 0; task < places.size(); ++task) {
    if (num_left[task] == 0) {
      ready.push(places[task]);
    }
  }
  std::vector<TaskId> order;
  order.reserve(places.size());
  while (!ready.empty()) {
    const uint32_t task = ready.top().task;
    ready.pop();
    order.emplace_back(size_t{task});
    for (const uint32_t it : dependents[task]) {
      if (--num_left[it] == 0) {
        ready.push(places[it]);
      }
    }
  }
  return order;
}

/// The positions of the pairs in `order`.
std::vector<JobRegion> regions_of(const std::vector<TaskId>& order,
                                  const std::vector<Place>& places) {
  std::vector<JobRegion> regions;
  for (uint32_t begin = 0; begin < order.size();) {
    const Place& first = places[order[begin].index()];
    JobRegion region{.begin = begin, .middle = 0, .end = begin};
    while (region.end < order.size() && places[order[region.end].index()].pair == first.pair) {
      if (region.middle == 0 && places[order[region.end].index()].job != first.job) {
        region.middle = region.end;
      }
      ++region.end;
    }
    if (region.middle > 0) {
      regions.push_back(region);
    }
    begin = region.end;
  }
  return regions;
}

}  // namespace

std::vector<TaskId> microbatches_in_pairs(const Program& program, const CostModel& model) {
  const JobSpans spans(program);
  const std::vector<int64_t> pairs = pairs_of_jobs(spans);
  if (pairs.empty()) {
    return {};
  }
  const std::vector<Place> places = wanted_places(program, spans, pairs);
  std::vector<TaskId> order = in_order_of(program, places);
  const Program paired = reorder_tasks(program, order);
  RegionWeaver weaver(paired, &model);
  for (const JobRegion& region : regions_of(order, places)) {
    weaver.weave_region(region);
  }
  std::vector<TaskId> woven;
  woven.reserve(order.size());
  for (const TaskId task : weaver.order()) {
    woven.push_back(order[task.index()]);
  }
  return woven;
}

}  // namespace braid
