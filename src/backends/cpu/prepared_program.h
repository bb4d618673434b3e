#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/buffer_addresses.h"
#include "backends/cpu/kernel.h"
#include "base/wait_word.h"
#include "comm/comm_call.h"
#include "comm/emulated_call.h"
#include "ir/program.h"
#include "memory/memory_plan.h"
#include "trace/task_timeline.h"

namespace braid {

/// A task with its kernel or its communication; a task with neither has nothing to do.
struct PreparedTask {
  TaskId id;
  uint32_t call = UINT32_MAX;  ///< index into PreparedProgram::calls
  const CpuKernel* kernel = nullptr;

  bool communicates() const { return call != UINT32_MAX; }
  bool is_nothing() const { return kernel == nullptr && !communicates(); }
};

/// A program with its addresses and its events, ready to run repeatedly. Event e of the n-th step
/// is recorded when events[e] >= n, so that nothing must be reset between steps.
struct PreparedProgram {
  /// Recorded by tasks that did not run; every step treats the event as recorded.
  static constexpr uint32_t kPoisoned = UINT32_MAX;

  Program program;
  std::vector<std::byte*> operands;              ///< parallel to Program::operands
  std::vector<CommCall> calls;                   ///< in program order
  std::vector<EmulatedCall> emulated;            ///< by call, if other ranks are emulated
  std::vector<std::vector<PreparedTask>> tasks;  ///< by stream of the program
  std::vector<TaskTimes> times;                  ///< by task, of the last traced step; otherwise
                                                 ///< empty
  std::unique_ptr<WaitWord[]> events;
  uint32_t num_steps = 0;  ///< launched so far

  std::span<std::byte* const> operands_of(const Task& task) const {
    return {operands.data() + task.operands_begin, program.spec(task).operands.size()};
  }
  int64_t size_bytes() const;
};

/// Everything except the kernels: `tasks` has those of each stream with `kernel` unset. Throws
/// InternalError if the plan and the program do not fit together.
PreparedProgram prepare_program(Program source, const MemoryPlan& plan, const StepPlan& step_plan,
                                const Arenas& arenas);

}  // namespace braid
