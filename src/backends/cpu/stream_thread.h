#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "backends/cpu/prepared_program.h"
#include "backends/host_arena.h"
#include "base/wait_word.h"
#include "base/worker_pool.h"
#include "comm/transport.h"
#include "ir/program.h"

namespace braid {

/// Why a step failed: the first error of any of its streams.
struct StepFailure {
  std::string message;
  bool is_echo = false;  ///< consequence of another rank's error
  std::chrono::steady_clock::time_point when;
};

/// The step that the streams of one rank run. The driving thread sets the first members between
/// steps.
struct StepState {
  int rank = 0;
  Transport* transport = nullptr;         ///< null after the step was abandoned
  std::span<const std::byte> stock = {};  ///< for emulated calls
  bool finite_checks = false;

  PreparedProgram* prepared = nullptr;
  bool tracing = false;
  std::chrono::steady_clock::time_point start;

  WaitWord num_running;  ///< streams that have not finished
  std::atomic<bool> abandoned{false};
  std::mutex failure_mutex;            ///< also held while a failure or the end uses the transport
  std::optional<StepFailure> failure;  ///< guarded by failure_mutex
  std::mutex finished_mutex;
  std::condition_variable finished;  ///< num_running has become 0

  int64_t now_ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                                start)
        .count();
  }
};

/// One stream of a rank: a thread that runs its tasks step by step, with its workers and the
/// scratch of its largest kernel.
class StreamThread {
 public:
  StreamThread(Stream stream, int num_workers, StepState& step);
  /// Waits until the thread has finished its current step.
  ~StreamThread();
  StreamThread(const StreamThread&) = delete;
  StreamThread& operator=(const StreamThread&) = delete;

  const Stream& stream() const { return stream_; }
  int num_workers() const { return workers_.num_workers(); }
  int64_t scratch_bytes() const { return scratch_.size_bytes(); }

  /// Allocates scratch and starts the thread. Throws DeviceError if that fails.
  void start(int64_t scratch_bytes);
  /// Runs the tasks of stream `stream` of StepState::prepared, then decrements num_running.
  void run_step(size_t stream);
  /// The task whose kernel is running.
  std::optional<TaskId> running_task() const;
  /// Detaches a thread that does not end. It continues to use this object and the step, so both
  /// must never be destroyed.
  void abandon() { thread_.detach(); }

 private:
  void serve();
  void finish_step();
  void run_tasks();
  bool wait_for_events(const Task& task) const;
  bool run(const PreparedTask& task);
  void execute(const PreparedTask& task);
  void communicate(size_t index);
  void check_finite(TaskId id) const;
  void fail(TaskId id, const std::string& cause, bool is_echo);

  const Stream stream_;
  // The other streams of a rank usually record their events within microseconds, if they have a
  // core to run on.
  const bool spin_for_events_ = WaitWord::may_spin(2);
  StepState& step_;
  WorkerPool workers_;
  HostArena scratch_;
  size_t stream_index_ = 0;  // in the program of this step
  std::atomic<uint32_t> running_task_{TaskId::kNone};
  Doorbell go_;
  std::thread thread_;
};

}  // namespace braid
