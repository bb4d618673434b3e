#include "passes/pipeline/hoist_stalled.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ir/dependencies.h"
#include "ops/op.h"
#include "passes/analysis/job_spans.h"
#include "passes/pipeline/stage_messages.h"

namespace braid {
namespace {

constexpr uint32_t kNone = JobSpans::kNone;

/// By task: it belongs to the first part of a forward: before the forward's first communication
/// (receiving its input does not count), first feed-forward and second layer.
std::vector<bool> first_parts(const Program& program, const JobSpans& jobs) {
  struct Forward {
    bool has_ended = false;
    int32_t layer = -1;
  };
  std::vector<Forward> forwards(jobs.jobs().size());
  std::vector<bool> is_in(program.tasks.size());
  for (uint32_t task = 0; task < program.tasks.size(); ++task) {
    const uint32_t job = jobs.job_of(task);
    if (job == kNone || jobs.jobs()[job].is_backward || task < jobs.jobs()[job].first) {
      continue;
    }
    const Task& it = program.tasks[task];
    Forward& forward = forwards[job];
    forward.has_ended |= it.label.phase == Phase::kComm || is_feed_forward(program, it) ||
                         (forward.layer >= 0 && it.label.layer != forward.layer);
    forward.layer = std::max(forward.layer, it.label.layer);
    is_in[task] = !forward.has_ended;
  }
  return is_in;
}

class Hoister {
 public:
  explicit Hoister(const Program& program)
      : program_(program), jobs_(program), place_(program.tasks.size(), kNone) {}

  HoistedTasks run() {
    const std::vector<bool> is_in_first_part = first_parts(program_, jobs_);
    for (const JobSpans::JobSpan& job : jobs_.jobs()) {
      if (!job.is_backward || !waits_for_message(job)) {
        continue;
      }
      for (uint32_t task = job.first + 1; task < job.last_dgrad; ++task) {
        if (is_in_first_part[task]) {
          hoist(task, job.first);
        }
      }
    }
    if (num_moved_ == 0) {
      return {};
    }
    std::vector<TaskId> order;
    for (uint32_t task = 0; task < place_.size(); ++task) {
      order.emplace_back(task);
    }
    std::ranges::stable_sort(order, {}, [&](TaskId task) {
      const uint32_t place = place_[task.index()];
      return place == kNone ? uint64_t{task.value} * 2 + 1 : uint64_t{place} * 2;
    });
    return {reorder_tasks(program_, order), num_moved_};
  }

 private:
  bool waits_for_message(const JobSpans::JobSpan& job) const {
    const Task& task = program_.tasks[job.begin];
    return communicates_as(program_.spec(task), CommOp::kRecv) && is_stage_message(program_, task);
  }

  /// Moves a task in front of `wait`, unless it depends on a task that stays behind `wait`.
  void hoist(uint32_t task, uint32_t wait) {
    if (dependencies_.row_begin.empty()) {
      dependencies_ = build_dependencies(program_);
    }
    const auto earlier = dependencies_.of(TaskId(task));
    if (std::any_of(earlier.begin(), earlier.end(),
                    [&](TaskId on) { return on.value >= wait && place_[on.index()] != wait; })) {
      return;
    }
    place_[task] = wait;
    ++num_moved_;
  }

  const Program& program_;
  JobSpans jobs_;
  DependencyGraph dependencies_;  // made when first needed
  std::vector<uint32_t> place_;   // by task: the task it moves in front of; kNone: it stays
  int64_t num_moved_ = 0;
};

}  // namespace

HoistedTasks hoist_stalled(Program program) {
  HoistedTasks hoisted = Hoister(program).run();
  if (hoisted.num_moved == 0) {
    hoisted.program = std::move(program);
  }
  return hoisted;
}

}  // namespace braid
