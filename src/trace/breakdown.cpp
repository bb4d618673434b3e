#include "trace/breakdown.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/errors.h"
#include "ops/op.h"
#include "trace/exposed.h"

namespace braid {
namespace {

constexpr uint32_t kNoTask = TimelineKernel::kNoTask;

void check_indices(const RankTimeline& rank) {
  for (const TimelineTask& task : rank.tasks) {
    check(rank.ops.empty() || task.op < rank.ops.size(), "timeline of rank {}: op {} of {}",
          rank.rank, task.op, rank.ops.size());
    check(task.name < rank.names.size(), "timeline of rank {}: name {} of {}", rank.rank, task.name,
          rank.names.size());
  }
  for (const TimelineKernel& kernel : rank.kernels) {
    check(kernel.task == kNoTask || kernel.task < rank.tasks.size(),
          "timeline of rank {}: a kernel of task {} of {}", rank.rank, kernel.task,
          rank.tasks.size());
  }
}

/// All work of a rank by start: kernels, or tasks if only those were timed.
std::vector<TimelineKernel> work_of(const RankTimeline& rank) {
  std::vector<TimelineKernel> work = rank.kernels;
  if (work.empty()) {
    for (size_t i = 0; i < rank.tasks.size(); ++i) {
      work.push_back({.task = static_cast<uint32_t>(i),
                      .start_ns = rank.tasks[i].start_ns,
                      .end_ns = rank.tasks[i].end_ns});
    }
  }
  std::stable_sort(work.begin(), work.end(),
                   [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; });
  return work;
}

/// The time in which work of each task ran.
std::vector<int64_t> busy_times(const RankTimeline& rank, const std::vector<TimelineKernel>& work) {
  std::vector<int64_t> busy_ns(rank.tasks.size());
  std::vector<int64_t> until_ns(rank.tasks.size());
  for (const TimelineKernel& piece : work) {
    if (piece.task != kNoTask) {
      int64_t& until = until_ns[piece.task];
      busy_ns[piece.task] += std::max<int64_t>(0, piece.end_ns - std::max(piece.start_ns, until));
      until = std::max(until, piece.end_ns);
    }
  }
  return busy_ns;
}

/// The minimum time in nanoseconds: the longer of arithmetic and memory traffic.
double least_time_ns(const TimelineOp& op, const DevicePeaks& peaks) {
  if (peaks.flops_per_s <= 0 || peaks.bytes_per_s <= 0) {
    return 0;
  }
  return 1e9 * std::max(op.flops / peaks.flops_per_s, op.bytes / peaks.bytes_per_s);
}

/// The op of a task; if costs are unknown, the first word of the task's name.
TimelineOp op_of(const RankTimeline& rank, const TimelineTask& task) {
  if (!rank.ops.empty()) {
    return rank.ops[task.op];
  }
  const std::string& name = rank.names[task.name];
  return {.name = std::string(name, 0, name.find(' '))};
}

std::vector<OpTime> op_times(const RankTimeline& rank, const std::vector<int64_t>& busy_ns) {
  std::map<std::string, OpTime> by_op;
  for (size_t i = 0; i < rank.tasks.size(); ++i) {
    const TimelineTask& task = rank.tasks[i];
    const TimelineOp op = op_of(rank, task);
    OpTime& sum = by_op[op.name];
    sum.op = op.name;
    sum.kind = task.communication ? op_kind_name(OpKind::kCommunication) : op_kind(op.name);
    ++sum.num_tasks;
    sum.busy_ns += busy_ns[i];
    sum.flops += op.flops;
    sum.bytes += op.bytes;
    sum.least_ns += least_time_ns(op, rank.device);
  }
  std::vector<OpTime> ops;
  for (auto& [name, sum] : by_op) {
    ops.push_back(std::move(sum));
  }
  std::stable_sort(ops.begin(), ops.end(),
                   [](const OpTime& a, const OpTime& b) { return a.busy_ns > b.busy_ns; });
  return ops;
}

void find_gaps(const std::vector<TimelineKernel>& work, int64_t step_ns, StepBreakdown& result) {
  std::vector<Gap> gaps;
  int64_t until_ns = 0;
  uint32_t last = kNoTask;
  const auto add = [&](int64_t next_ns, uint32_t next) {
    if (next_ns > until_ns) {
      gaps.push_back({.start_ns = until_ns, .end_ns = next_ns, .after = last, .before = next});
      result.idle_ns += next_ns - until_ns;
    }
  };
  for (const TimelineKernel& piece : work) {
    add(piece.start_ns, piece.task);
    if (piece.end_ns >= until_ns) {
      until_ns = piece.end_ns;
      last = piece.task;
    }
  }
  add(step_ns, kNoTask);
  result.num_gaps = static_cast<int64_t>(gaps.size());
  std::stable_sort(gaps.begin(), gaps.end(),
                   [](const Gap& a, const Gap& b) { return a.duration_ns() > b.duration_ns(); });
  gaps.resize(std::min(gaps.size(), StepBreakdown::kMaxGaps));
  result.longest = std::move(gaps);
}

StepBreakdown break_down_rank(const RankTimeline& rank, int64_t step_ns) {
  check_indices(rank);
  const std::vector<TimelineKernel> work = work_of(rank);
  StepBreakdown result;
  result.rank = rank.rank;
  result.ops = op_times(rank, busy_times(rank, work));
  for (const TimelineKernel& piece : work) {
    result.no_task_ns += piece.task == kNoTask ? piece.end_ns - piece.start_ns : 0;
  }
  find_gaps(work, step_ns, result);
  return result;
}

/// "; <remark>" for each distinct remark.
std::string remarks_of(const Timeline& timeline) {
  std::set<std::string> remarks;
  for (const RankTimeline& rank : timeline.ranks) {
    remarks.insert(rank.remark);
  }
  remarks.erase("");
  std::string text;
  for (const std::string& remark : remarks) {
    text += "; " + remark;
  }
  return text;
}

}  // namespace

std::vector<StepBreakdown> break_down(const Timeline& timeline) {
  const int64_t step_ns = step_time_ns(timeline);
  std::vector<StepBreakdown> ranks;
  for (const RankTimeline& rank : timeline.ranks) {
    ranks.push_back(break_down_rank(rank, step_ns));
  }
  return ranks;
}

std::string describe_step(const Timeline& timeline) {
  if (timeline.ranks.empty()) {
    return "no step";
  }
  std::map<std::string_view, int64_t> times;
  for (const StepBreakdown& rank : break_down(timeline)) {
    for (const OpTime& op : rank.ops) {
      times[op.kind] += op.busy_ns;
    }
    times["idle"] += rank.idle_ns;
    times["no task"] += rank.no_task_ns;
  }
  std::vector<std::pair<int64_t, std::string_view>> longest_first;
  for (const auto& [what, time_ns] : times) {
    longest_first.emplace_back(-time_ns, what);
  }
  std::sort(longest_first.begin(), longest_first.end());
  const int64_t step_ns = step_time_ns(timeline);
  const double all_ns = static_cast<double>(step_ns) * static_cast<double>(timeline.ranks.size());
  std::string shares;
  for (const auto& [time_ns, what] : longest_first) {
    if (time_ns < 0) {
      shares += fmt::format("{} {} {:.1f}%", shares.empty() ? ":" : ",", what,
                            -100 * static_cast<double>(time_ns) / all_ns);
    }
  }
  return fmt::format("step {}, {}, {:.2f} ms{}{}", timeline.ranks.front().step, timeline.source,
                     static_cast<double>(step_ns) * 1e-6, shares, remarks_of(timeline));
}

std::string_view op_kind(std::string_view op) {
  const OpDefinition* const known = find_known_op(op);
  return op_kind_name(known == nullptr ? OpKind::kElementwise : *known->kind);
}

}  // namespace braid
