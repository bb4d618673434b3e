#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"
#include "trace/timeline.h"

namespace braid {

/// Start and end of a task in nanoseconds since the start of its step; -1: did not run.
struct TaskTimes {
  int64_t start_ns = -1;
  int64_t end_ns = -1;
};

/// The tasks that ran, stream by stream in program order, with what their ops cost, and the
/// sequences of those that communicate with other ranks. `times` is by task. `kernels` name tasks
/// by their place in the program; those of tasks that did not run become kernels of no task. Throws
/// InternalError for a communication task of a group that the program does not have.
RankTimeline task_timeline(const Program& program, std::span<const TaskTimes> times,
                           std::vector<TimelineKernel> kernels = {});

}  // namespace braid
