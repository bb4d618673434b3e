#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backends/executor.h"
#include "ir/program.h"
#include "memory/memory_plan.h"
#include "sim/profile.h"

namespace braid {

using ExecutorFactory =
    std::function<std::unique_ptr<Executor>(std::vector<Program> programs, MemoryPlan plan)>;

struct TaskTimerOptions {
  ExecutorFactory make_executor;
  int64_t rotation_bytes = 0;  ///< total bytes of the operand sets that repetitions use in turn:
                               ///< more than the cache holds
  int64_t max_bytes = 0;       ///< limit for the operands of a spec together, unless a single set
                               ///< is larger
  int64_t program_ns = 2'000'000;   ///< expected duration of one launch: determines the repetitions
                                    ///< of a task
  int64_t warm_up_ns = 20'000'000;  ///< duration of launches before the first measured one
  int64_t sample_ns = 4'000'000;    ///< duration of launches that are timed together
  int num_samples = 9;
  int64_t spec_ns = 250'000'000;         ///< time limit for the samples of a spec; at least three
                                         ///< are taken
  std::function<int64_t()> now_ns = {};  ///< any clock; default: the system's steady one
};

/// The host's time for a step in addition to its tasks, and for a task in addition to its work.
struct Overheads {
  int64_t launch_ns = 0;  ///< from one smallest task to the next in a program
  int64_t step_ns = 0;    ///< launching a program and waiting for its end
};

/// A program that contains only `spec`, `repetitions` times on one stream, using `num_sets` sets of
/// operands in turn. Operands are ranges of persistent buffers, one for each dtype and for
/// read-only and written operands: "read.bf16", "written.f32".
struct RepeatedTask {
  OpSpec spec;
  int64_t num_sets = 1;
  int64_t repetitions = 1;
};

/// Programs that run before those of the tasks: they copy what the host has written to
/// "seed.<dtype>" (kSeedElems elements each) into all read-only operands except integers, and into
/// all written operands.
enum FillProgram : size_t { kFillRead, kFillWritten, kNumFillPrograms };

/// The fill programs, then a program for each task. All share the buffers, which have the size of
/// the largest task.
std::vector<Program> repeated_task_programs(std::span<const RepeatedTask> tasks);

/// The beginning of the buffer "read.i32" for a task: integers that its op accepts, in all sets.
std::vector<int32_t> operand_integers(const RepeatedTask& task);

inline constexpr int64_t kSeedElems = int64_t{1} << 18;

/// Bytes of one set of operands.
int64_t operand_set_bytes(const OpSpec& spec);

/// Times specs through an executor: random operands in turn, a warm device, and the median of
/// several samples, each of back-to-back launches, divided by the number of tasks in them.
class TaskTimer {
 public:
  explicit TaskTimer(TaskTimerOptions options);

  /// Must be called before `time`, which subtracts them. `spec` is the smallest possible task.
  Overheads measure_overheads(const OpSpec& spec);

  /// One timing per spec, in this order. `guess_ns`: estimates of the durations; a bad estimate
  /// only costs time or accuracy. `done` is called after each spec. Throws what the executor
  /// throws.
  std::vector<Timing> time(std::span<const OpSpec> specs, std::span<const double> guess_ns,
                           const std::function<void()>& done);

 private:
  double run_many(Executor& executor, size_t program, int64_t launches) const;
  Timing time_program(Executor& executor, size_t program, int64_t repetitions) const;
  RepeatedTask repeat(const OpSpec& spec, double guess_ns) const;

  TaskTimerOptions options_;
  Overheads overheads_;
};

/// Times copies of these sizes between host memory of the executor and its device.
struct HostCopyTimings {
  std::vector<CopyPoint> to_device;
  std::vector<CopyPoint> to_host;
};
HostCopyTimings time_host_copies(const ExecutorFactory& make_executor,
                                 std::span<const int64_t> sizes_bytes, int num_samples);

/// The median, and the distance between the quartiles divided by it. Throws InternalError without
/// samples.
Timing summarize(std::vector<double> samples_ns);

}  // namespace braid
