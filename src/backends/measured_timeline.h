#pragma once

#include <cstdint>
#include <span>

#include "ir/program.h"
#include "trace/timeline.h"

namespace braid {

/// Start and end of a task in nanoseconds since the start of its step; -1: did not run.
struct TaskTimes {
  int64_t start_ns = -1;
  int64_t end_ns = -1;
};

/// The tasks that ran, stream by stream in program order. `times` is by task. Throws InternalError
/// for a communication task of a group that the program does not have.
RankTimeline measured_timeline(const Program& program, std::span<const TaskTimes> times);

}  // namespace braid
