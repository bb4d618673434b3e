#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"
#include "trace/timeline.h"

namespace braid {

/// Start and end of a task in nanoseconds since the start of its step; -1: the task did not run.
struct TaskTimes {
  int64_t start_ns = -1;
  int64_t end_ns = -1;
};

/// The tasks that ran, stream by stream in program order, with the costs of their ops and the
/// sequences of the tasks that communicate with other ranks. `times` is by task. `kernels` refer to
/// tasks by position in the program; kernels of tasks that did not run become kernels of no task.
/// Throws InternalError for a communication task of a group that the program lacks.
RankTimeline task_timeline(const Program& program, std::span<const TaskTimes> times,
                           std::vector<TimelineKernel> kernels = {});

}  // namespace braid
