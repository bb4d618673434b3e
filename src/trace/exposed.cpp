#include "trace/exposed.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "trace/intervals.h"

namespace braid {
namespace {

using Intervals = std::vector<Interval>;

Interval interval_of(const TimelineTask& task) {
  return {task.start_ns, task.end_ns};
}

/// Merged intervals of the tasks for which `selected` is true.
template <class Selected>
Intervals intervals_of(const RankTimeline& rank, Selected&& selected) {
  Intervals intervals;
  for (const TimelineTask& task : rank.tasks) {
    if (selected(task)) {
      intervals.push_back(interval_of(task));
    }
  }
  return merge_intervals(std::move(intervals));
}

/// Merged union of two merged lists.
Intervals either(const Intervals& a, const Intervals& b) {
  Intervals all = a;
  all.insert(all.end(), b.begin(), b.end());
  return merge_intervals(std::move(all));
}

/// Collects the communication of one kind.
struct Collected {
  CommunicationTime time;
  Intervals intervals;
  Intervals transfers;

  void add(const TimelineTask& task) {
    ++time.num_tasks;
    time.bytes += task.bytes;
    intervals.push_back(interval_of(task));
    transfers.push_back({task.start_ns + task.wait_ns, task.end_ns});
  }

  CommunicationTime finish(const Intervals& compute) {
    intervals = merge_intervals(std::move(intervals));
    transfers = merge_intervals(std::move(transfers));
    time.total_ns = total_ns(intervals);
    time.exposed_ns = time.total_ns - overlap_ns(intervals, compute);
    time.exposed_wait_ns = time.exposed_ns - (total_ns(transfers) - overlap_ns(transfers, compute));
    return time;
  }
};

void check_tasks(const RankTimeline& rank) {
  for (const TimelineTask& task : rank.tasks) {
    check(task.stream < rank.streams.size(), "timeline of rank {}: stream {} of {}", rank.rank,
          task.stream, rank.streams.size());
    check(0 <= task.start_ns && task.start_ns <= task.end_ns,
          "timeline of rank {}: a task from {} to {} ns", rank.rank, task.start_ns, task.end_ns);
    check(0 <= task.wait_ns && task.wait_ns <= task.end_ns - task.start_ns,
          "timeline of rank {}: a task of {} ns waits for {} ns", rank.rank,
          task.end_ns - task.start_ns, task.wait_ns);
  }
}

bool is_copy(const RankTimeline& rank, const TimelineTask& task) {
  return !task.communication && rank.streams[task.stream].kind == StreamKind::kCopy;
}

Intervals compute_of(const RankTimeline& rank) {
  return intervals_of(
      rank, [&](const TimelineTask& task) { return !task.communication && !is_copy(rank, task); });
}

void analyze_communication(const RankTimeline& rank, const Intervals& compute, RankTimes& times) {
  Collected all;
  std::array<Collected, kNumGroupKinds> by_group;
  std::array<Collected, kNumPhases> by_phase;
  for (const TimelineTask& task : rank.tasks) {
    if (task.communication) {
      all.add(task);
      by_group.at(static_cast<size_t>(task.group)).add(task);
      by_phase.at(static_cast<size_t>(task.phase)).add(task);
    }
  }
  times.communication = all.finish(compute);
  for (size_t i = 0; i < by_group.size(); ++i) {
    times.by_group[i] = by_group[i].finish(compute);
  }
  for (size_t i = 0; i < by_phase.size(); ++i) {
    times.by_phase[i] = by_phase[i].finish(compute);
  }
}

std::string without_layer(std::string name, int layer) {
  const std::string prefix = fmt::format("layers.{}.", layer);
  const size_t at = name.find(prefix);
  return at == std::string::npos ? name : name.erase(at, prefix.size());
}

std::vector<int64_t> busy_times(const RankTimeline& rank) {
  std::vector<Intervals> by_stream(rank.streams.size());
  for (const TimelineTask& task : rank.tasks) {
    by_stream[task.stream].push_back(interval_of(task));
  }
  std::vector<int64_t> busy_ns;
  for (Intervals& intervals : by_stream) {
    busy_ns.push_back(total_ns(merge_intervals(std::move(intervals))));
  }
  return busy_ns;
}

}  // namespace

CommunicationTime& CommunicationTime::operator+=(const CommunicationTime& other) {
  num_tasks += other.num_tasks;
  bytes += other.bytes;
  total_ns += other.total_ns;
  exposed_ns += other.exposed_ns;
  exposed_wait_ns += other.exposed_wait_ns;
  return *this;
}

RankTimes analyze_rank(const RankTimeline& rank, int64_t step_ns) {
  check_tasks(rank);
  const Intervals compute = compute_of(rank);
  const Intervals communication =
      intervals_of(rank, [](const TimelineTask& task) { return task.communication; });
  const Intervals copies =
      intervals_of(rank, [&](const TimelineTask& task) { return is_copy(rank, task); });
  const Intervals without_copies = either(compute, communication);

  RankTimes times;
  times.rank = rank.rank;
  times.step_ns = step_ns;
  times.compute_ns = total_ns(compute);
  analyze_communication(rank, compute, times);
  times.copy_ns = total_ns(copies) - overlap_ns(copies, without_copies);
  times.bubble_ns = step_ns - total_ns(either(without_copies, copies));
  times.busy_ns = busy_times(rank);
  return times;
}

std::vector<PlaceCommunication> communication_by_place(const Timeline& timeline) {
  std::map<std::string, CommunicationTime> places;
  for (const RankTimeline& rank : timeline.ranks) {
    check_tasks(rank);
    std::map<std::string, Collected> of_rank;
    for (const TimelineTask& task : rank.tasks) {
      if (task.communication) {
        of_rank[without_layer(rank.names.at(task.name), task.layer)].add(task);
      }
    }
    const Intervals compute = compute_of(rank);
    for (auto& [name, collected] : of_rank) {
      places[name] += collected.finish(compute);
    }
  }
  std::vector<PlaceCommunication> result;
  for (const auto& [name, time] : places) {
    result.push_back({.name = name, .time = time});
  }
  std::ranges::stable_sort(result, std::greater<>(), [](const PlaceCommunication& it) {
    return std::tuple(it.time.exposed_ns, it.time.total_ns);
  });
  return result;
}

std::string hidden_share(const CommunicationTime& time) {
  return time.total_ns == 0 ? "-"
                            : fmt::format("{:.1f}%", 100.0 * static_cast<double>(time.hidden_ns()) /
                                                         static_cast<double>(time.total_ns));
}

int64_t step_time_ns(const Timeline& timeline) {
  int64_t end_ns = 0;
  for (const RankTimeline& rank : timeline.ranks) {
    for (const TimelineTask& task : rank.tasks) {
      end_ns = std::max(end_ns, task.end_ns);
    }
    for (const TimelineKernel& kernel : rank.kernels) {
      end_ns = std::max(end_ns, kernel.end_ns);
    }
  }
  return end_ns;
}

std::vector<RankTimes> analyze_timeline(const Timeline& timeline) {
  const int64_t step_ns = step_time_ns(timeline);
  std::vector<RankTimes> ranks;
  for (const RankTimeline& rank : timeline.ranks) {
    ranks.push_back(analyze_rank(rank, step_ns));
  }
  return ranks;
}

std::string describe_times(const Timeline& timeline) {
  if (timeline.ranks.empty()) {
    return "no step";
  }
  int64_t sums[4] = {};
  int64_t all_ns = 0;
  for (const RankTimes& rank : analyze_timeline(timeline)) {
    const int64_t parts[4] = {rank.compute_ns, rank.communication.exposed_ns, rank.copy_ns,
                              rank.bubble_ns};
    std::transform(parts, parts + 4, sums, sums, std::plus<>());
    all_ns += rank.step_ns;
  }
  constexpr const char* kNames[4] = {"compute", "exposed communication", "copies", "idle"};
  std::vector<std::string> shares;
  for (size_t part = 0; part < 4; ++part) {
    if (sums[part] > 0) {
      shares.push_back(
          fmt::format("{} {:.1f}%", kNames[part],
                      100.0 * static_cast<double>(sums[part]) / static_cast<double>(all_ns)));
    }
  }
  return fmt::format("step {}, {}: {}", timeline.ranks.front().step,
                     format_duration(static_cast<double>(step_time_ns(timeline)) * 1e-9),
                     join(shares, ", "));
}

}  // namespace braid
