#include "passes/analysis/job_spans.h"

#include <algorithm>
#include <unordered_map>

#include "ops/offload.h"
#include "ops/op.h"
#include "passes/pipeline/stage_messages.h"

namespace braid {
namespace {

bool is_of_microbatch(const Program& program, const Task& task) {
  return task.label.microbatch >= 0 && !does_nothing(program.spec(task));
}

/// By microbatch and virtual stage: the job of the task seen last.
using LastJobs = std::unordered_map<uint64_t, uint32_t>;

uint32_t look_up(const LastJobs& jobs, const Task& task) {
  const auto found = jobs.find(microbatch_key(task.label));
  return found == jobs.end() ? JobSpans::kNone : found->second;
}

}  // namespace

JobKey job_key(const Job& job) {
  Label label;
  label.microbatch = job.microbatch;
  label.virtual_stage = job.virtual_stage;
  return {job.kind != JobKind::kForward, microbatch_key(label)};
}

JobKey job_key(const Label& label) {
  return {label.phase == Phase::kDgrad || label.phase == Phase::kWgrad, microbatch_key(label)};
}

JobSpans::JobSpans(const Program& program) : job_of_(program.tasks.size(), kNone) {
  find_compute(program);
  find_communication(program);
}

void JobSpans::find_compute(const Program& program) {
  LastJobs forwards;
  LastJobs backwards;
  for (uint32_t task = 0; task < program.tasks.size(); ++task) {
    const Task& it = program.tasks[task];
    if (!is_of_microbatch(program, it) || it.label.phase == Phase::kComm) {
      continue;
    }
    const JobKey key = job_key(it.label);
    const bool is_backward = key.first;
    const auto [entry, is_new] = (is_backward ? backwards : forwards)
                                     .try_emplace(key.second, static_cast<uint32_t>(jobs_.size()));
    if (is_new) {
      jobs_.push_back({.is_backward = is_backward, .begin = task, .first = task});
    }
    job_of_[task] = entry->second;
    if (it.label.phase == Phase::kDgrad) {
      jobs_[entry->second].last_dgrad = task;
    }
  }
}

void JobSpans::find_communication(const Program& program) {
  const auto is_comm = [&](uint32_t task) {
    const Task& it = program.tasks[task];
    return is_of_microbatch(program, it) && it.label.phase == Phase::kComm;
  };
  const auto note = [&](uint32_t task, LastJobs& jobs) {
    if (job_of_[task] != kNone && !is_comm(task)) {
      jobs[microbatch_key(program.tasks[task].label)] = job_of_[task];
    }
  };
  LastJobs behind;
  for (auto task = static_cast<uint32_t>(program.tasks.size()); task-- > 0;) {
    if (is_comm(task) && !communicates_as(program.spec(program.tasks[task]), CommOp::kSend)) {
      job_of_[task] = look_up(behind, program.tasks[task]);
    }
    note(task, behind);
  }
  LastJobs in_front;
  for (uint32_t task = 0; task < program.tasks.size(); ++task) {
    if (is_comm(task) && job_of_[task] == kNone) {
      job_of_[task] = look_up(in_front, program.tasks[task]);
    }
    note(task, in_front);
    if (job_of_[task] != kNone) {
      jobs_[job_of_[task]].begin = std::min(jobs_[job_of_[task]].begin, task);
    }
  }
}

}  // namespace braid
