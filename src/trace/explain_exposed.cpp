#include "trace/explain_exposed.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/text.h"
#include "trace/intervals.h"

namespace braid {
namespace {

using Intervals = std::vector<Interval>;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

bool is_compute(const RankTimeline& rank, const TimelineTask& task) {
  return !task.communication && rank.streams[task.stream].kind != StreamKind::kCopy;
}

/// The time in `a` but not in `b`; all lists are merged.
Intervals difference(const Intervals& a, const Intervals& b) {
  Intervals rest;
  auto cut = b.begin();
  for (Interval piece : a) {
    cut = std::find_if(cut, b.end(), [&](const Interval& i) { return i.end_ns > piece.begin_ns; });
    for (auto next = cut; next != b.end() && next->begin_ns < piece.end_ns; ++next) {
      if (next->begin_ns > piece.begin_ns) {
        rest.push_back({piece.begin_ns, next->begin_ns});
      }
      piece.begin_ns = next->end_ns;
    }
    if (piece.begin_ns < piece.end_ns) {
      rest.push_back(piece);
    }
  }
  return rest;
}

/// The compute tasks of a rank, and the limits of its phases.
class Compute {
 public:
  explicit Compute(const RankTimeline& rank) : rank_(rank) {
    for (size_t i = 0; i < rank.tasks.size(); ++i) {
      const TimelineTask& task = rank.tasks[i];
      if (is_compute(rank, task) && task.start_ns < task.end_ns) {
        tasks_.push_back(i);
        busy_.push_back({task.start_ns, task.end_ns});
        note_phase(task);
      }
    }
    busy_ = merge_intervals(std::move(busy_));
    std::stable_sort(tasks_.begin(), tasks_.end(), [&](size_t a, size_t b) {
      return rank.tasks[a].start_ns < rank.tasks[b].start_ns;
    });
  }

  const Intervals& busy() const { return busy_; }
  int64_t first_start_ns() const { return busy_.empty() ? kNever : busy_.front().begin_ns; }
  int64_t last_model_end_ns() const { return last_model_end_ns_; }
  int64_t first_backward_ns() const { return first_backward_ns_; }
  int64_t last_forward_ns() const { return last_forward_ns_; }

  /// The first task that starts at or after the time; null if there is none.
  const TimelineTask* next_task(int64_t time_ns) const {
    const auto next = std::lower_bound(
        tasks_.begin(), tasks_.end(), time_ns,
        [&](size_t task, int64_t time) { return rank_.tasks[task].start_ns < time; });
    return next == tasks_.end() ? nullptr : &rank_.tasks[*next];
  }

 private:
  void note_phase(const TimelineTask& task) {
    if (task.phase != Phase::kOptimizer) {
      last_model_end_ns_ = std::max(last_model_end_ns_, task.end_ns);
    }
    if (task.phase == Phase::kForward) {
      last_forward_ns_ = std::max(last_forward_ns_, task.end_ns);
    } else if (task.phase == Phase::kDgrad || task.phase == Phase::kWgrad) {
      first_backward_ns_ = std::min(first_backward_ns_, task.start_ns);
    }
  }

  const RankTimeline& rank_;
  std::vector<size_t> tasks_;  // by start
  Intervals busy_;
  int64_t last_model_end_ns_ = 0;
  int64_t last_forward_ns_ = 0;
  int64_t first_backward_ns_ = kNever;
};

/// Whether the next task adds information to the reason.
bool names_waiting(ExposedReason reason) {
  return reason == ExposedReason::kComputeStream || reason == ExposedReason::kComputeWaits;
}

/// Adds up one kind over the ranks.
class KindExplainer {
 public:
  explicit KindExplainer(GroupKind kind) { result_.kind = kind; }

  void add(const RankTimeline& rank, const Compute& compute, const CommunicationTime& time) {
    if (time.num_tasks == 0) {
      return;
    }
    result_.time += time;
    const Intervals on_compute = intervals(rank, [&](const TimelineTask& task) {
      return rank.streams[task.stream].kind == StreamKind::kCompute;
    });
    const Intervals all = intervals(rank, [](const TimelineTask&) { return true; });
    explain(rank, compute, all, difference(on_compute, compute.busy()), true);
    explain(rank, compute, all, difference(difference(all, on_compute), compute.busy()), false);
  }

  ExplainedCommunication finish() {
    for (auto& [key, waiting] : waiting_) {
      result_.waiting.push_back(std::move(waiting));
    }
    std::stable_sort(
        result_.waiting.begin(), result_.waiting.end(),
        [](const WaitingTask& a, const WaitingTask& b) { return a.exposed_ns > b.exposed_ns; });
    return std::move(result_);
  }

 private:
  template <class Selected>
  Intervals intervals(const RankTimeline& rank, Selected&& selected) const {
    Intervals found;
    for (const TimelineTask& task : rank.tasks) {
      if (task.communication && task.group == result_.kind && selected(task)) {
        found.push_back({task.start_ns, task.end_ns});
      }
    }
    return merge_intervals(std::move(found));
  }

  /// `pieces` are exposed parts of `all`, which is all communication of this kind on the rank.
  void explain(const RankTimeline& rank, const Compute& compute, const Intervals& all,
               const Intervals& pieces, bool on_compute_stream) {
    for (const Interval& piece : pieces) {
      const ExposedReason reason = reason_of(compute, all, piece, on_compute_stream);
      result_.by_reason_ns.at(static_cast<size_t>(reason)) += piece.end_ns - piece.begin_ns;
      if (names_waiting(reason)) {
        const TimelineTask* next = compute.next_task(piece.end_ns);
        count_wait(rank.names[next->name], next->phase, piece.end_ns - piece.begin_ns);
      }
    }
  }

  ExposedReason reason_of(const Compute& compute, const Intervals& all, const Interval& piece,
                          bool on_compute_stream) const {
    const TimelineTask* next = compute.next_task(piece.end_ns);
    if (next == nullptr) {
      return ExposedReason::kAfterCompute;
    }
    if (piece.begin_ns >= compute.last_model_end_ns() && compute.last_model_end_ns() > 0) {
      return ExposedReason::kBeforeOptimizer;
    }
    if (result_.kind == GroupKind::kPipeline && piece.begin_ns < compute.first_backward_ns()) {
      return ExposedReason::kWarmup;
    }
    if (result_.kind == GroupKind::kPipeline && piece.begin_ns >= compute.last_forward_ns()) {
      return ExposedReason::kCooldown;
    }
    if (piece.begin_ns < compute.first_start_ns()) {
      return ExposedReason::kBeforeCompute;
    }
    if (on_compute_stream) {
      return ExposedReason::kComputeStream;
    }
    return goes_on(all, piece.end_ns) && next->start_ns == piece.end_ns
               ? ExposedReason::kOtherWait
               : ExposedReason::kComputeWaits;
  }

  /// Whether one interval contains the time and continues after it.
  static bool goes_on(const Intervals& merged, int64_t time_ns) {
    const auto holder =
        std::upper_bound(merged.begin(), merged.end(), time_ns,
                         [](int64_t time, const Interval& i) { return time < i.end_ns; });
    return holder != merged.end() && holder->begin_ns < time_ns;
  }

  void count_wait(const std::string& name, Phase phase, int64_t exposed_ns) {
    WaitingTask& waiting = waiting_[{name, phase}];
    waiting.name = name;
    waiting.phase = phase;
    ++waiting.num_waits;
    waiting.exposed_ns += exposed_ns;
  }

  ExplainedCommunication result_;
  std::map<std::pair<std::string, Phase>, WaitingTask> waiting_;
};

std::string duration(int64_t ns) {
  return format_duration(static_cast<double>(ns) * 1e-9);
}

std::string longest_wait(const ExplainedCommunication& communication) {
  if (communication.waiting.empty()) {
    return "";
  }
  const WaitingTask& longest = communication.waiting.front();
  return fmt::format(" (most before {}, {}: {} in {} {})", longest.name, phase_name(longest.phase),
                     duration(longest.exposed_ns), longest.num_waits,
                     longest.num_waits == 1 ? "place" : "places");
}

std::string_view explanation(ExposedReason reason, GroupKind kind) {
  switch (reason) {
    case ExposedReason::kAfterCompute:
      return "after the last compute task: nothing is left to hide it under";
    case ExposedReason::kBeforeOptimizer:
      return kind == GroupKind::kWorld
                 ? "at the end of the backward: the optimizer needs this sum"
                 : "at the end of the backward: the optimizer needs these gradients";
    case ExposedReason::kWarmup:
      return "in the pipeline's warm-up, before the first backward";
    case ExposedReason::kCooldown:
      return "in the pipeline's cool-down, after the last forward";
    case ExposedReason::kBeforeCompute:
      return "at the start of the step: the first compute task waits for it";
    case ExposedReason::kComputeStream:
      return "on the compute stream, where nothing can run beside it";
    case ExposedReason::kOtherWait:
      return "while compute waited for something else";
    case ExposedReason::kComputeWaits:
      return "while compute waited for it with nothing else to run";
  }
  return "";
}

}  // namespace

std::string_view exposed_reason_name(ExposedReason reason) {
  constexpr std::array<std::string_view, kNumExposedReasons> kNames = {
      "after compute",  "before the optimizer",  "pipeline warm-up", "pipeline cool-down",
      "before compute", "on the compute stream", "other wait",       "compute waits"};
  return kNames.at(static_cast<size_t>(reason));
}

std::vector<ExplainedCommunication> explain_exposed(const Timeline& timeline) {
  const std::vector<RankTimes> times = analyze_timeline(timeline);
  std::vector<KindExplainer> explainers;
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    explainers.emplace_back(static_cast<GroupKind>(kind));
  }
  for (size_t i = 0; i < timeline.ranks.size(); ++i) {
    const Compute compute(timeline.ranks[i]);
    for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
      explainers[kind].add(timeline.ranks[i], compute, times[i].by_group.at(kind));
    }
  }
  std::vector<ExplainedCommunication> found;
  for (KindExplainer& explainer : explainers) {
    ExplainedCommunication one = explainer.finish();
    if (one.time.num_tasks > 0) {
      found.push_back(std::move(one));
    }
  }
  return found;
}

std::string describe_exposed(const ExplainedCommunication& communication) {
  constexpr size_t kMostReasons = 3;
  const CommunicationTime& time = communication.time;
  std::string text =
      fmt::format("{}: {}", group_kind_name(communication.kind), duration(time.total_ns));
  if (time.total_ns == 0) {
    return text;
  }
  text += fmt::format(", {} hidden", hidden_share(time));
  std::vector<std::pair<int64_t, ExposedReason>> reasons;
  for (size_t i = 0; i < kNumExposedReasons; ++i) {
    if (communication.by_reason_ns.at(i) > 0) {
      reasons.emplace_back(communication.by_reason_ns.at(i), static_cast<ExposedReason>(i));
    }
  }
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  bool named = false;
  for (size_t i = 0; i < std::min(reasons.size(), kMostReasons); ++i) {
    const auto& [exposed_ns, reason] = reasons[i];
    text += fmt::format("; {} exposed {}", duration(exposed_ns),
                        explanation(reason, communication.kind));
    if (names_waiting(reason) && !named) {
      text += longest_wait(communication);
      named = true;
    }
  }
  if (time.exposed_wait_ns > 0) {
    text += fmt::format("; for {} of the exposed time it waited for other ranks",
                        duration(time.exposed_wait_ns));
  }
  return text;
}

}  // namespace braid
