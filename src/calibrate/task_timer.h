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
  int64_t rotation_bytes = 0;  ///< repetitions take turns with operands of so many bytes together:
                               ///< more than the cache holds
  int64_t max_bytes = 0;       ///< operands of a spec together, where one set of them has no more
  int64_t program_ns = 2'000'000;  ///< expected duration of one launch: tasks are repeated so often
  int64_t warm_up_ns = 20'000'000;  ///< of launches before the first that counts
  int64_t sample_ns = 4'000'000;    ///< of launches that are timed together
  int num_samples = 9;
  int64_t spec_ns = 250'000'000;         ///< samples end after it, but for three of them
  std::function<int64_t()> now_ns = {};  ///< any clock; default: the system's steady one
};

/// What a step takes on the host besides its tasks, and a task besides its work.
struct Overheads {
  int64_t launch_ns = 0;  ///< from one smallest task to the next in a program
  int64_t step_ns = 0;    ///< launching a program and waiting for its end
};

/// A program whose only content is `spec`, `repetitions` times on one stream, each time on the next
/// of `num_sets` sets of operands. Operands are ranges of persistent buffers, one for each dtype
/// and whether it is written: "read.bf16", "written.f32".
struct RepeatedTask {
  OpSpec spec;
  int64_t num_sets = 1;
  int64_t repetitions = 1;
};

/// What comes before the programs of the tasks: copies of what the host has written to
/// "seed.<dtype>" (kSeedElems elements each) into all that is read but tokens, into tokens (i32),
/// into all that is written.
enum FillProgram : size_t { kFillRead, kFillTokens, kFillWritten, kNumFillPrograms };

/// The fill programs, then a program for each task. All share the buffers, which are as large as
/// the largest task needs.
std::vector<Program> repeated_task_programs(std::span<const RepeatedTask> tasks);

inline constexpr int64_t kSeedElems = int64_t{1} << 18;

/// Bytes that one set of operands takes.
int64_t operand_set_bytes(const OpSpec& spec);

/// Times specs through an executor: random operands that take turns, the device warm, the median of
/// several samples, each of launches one after the other, divided by the number of tasks in them.
class TaskTimer {
 public:
  explicit TaskTimer(TaskTimerOptions options);

  /// Must come before `time`, which subtracts them. `spec` is the smallest task there is.
  Overheads measure_overheads(const OpSpec& spec);

  /// One timing per spec, in this order. `guess_ns`: about how long each takes; a bad guess costs
  /// time or accuracy only. `done` is called after each spec. Throws what the executor throws.
  std::vector<Timing> time(std::span<const OpSpec> specs, std::span<const double> guess_ns,
                           const std::function<void()>& done);

 private:
  double run_many(Executor& executor, size_t program, int64_t launches) const;
  Timing time_program(Executor& executor, size_t program, int64_t repetitions) const;
  RepeatedTask repeat(const OpSpec& spec, double guess_ns) const;

  TaskTimerOptions options_;
  Overheads overheads_;
};

/// Times copies of these sizes between host memory that the executor lends and its device.
struct HostCopyTimings {
  std::vector<CopyPoint> to_device;
  std::vector<CopyPoint> to_host;
};
HostCopyTimings time_host_copies(const ExecutorFactory& make_executor,
                                 std::span<const int64_t> sizes_bytes, int num_samples);

/// Median, and the distance between the quartiles over it. Throws InternalError without samples.
Timing summarize(std::vector<double> samples_ns);

}  // namespace braid
