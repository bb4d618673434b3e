#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/nvtx_range.h"
#include "backends/step_progress.h"

namespace braid {

class DeviceRank;

/// The steps that were launched and not waited for, oldest first; an event after each marks its
/// end. The durations of a program's steps determine when a later one must be stuck.
class StepsInFlight {
 public:
  static constexpr int kMost = 2;

  /// For this rank, which must outlive this object; events are of the current device. `timeout_ns`
  /// as in CudaExecutorOptions. `num_launched`: launches before.
  StepsInFlight(const DeviceRank& rank, int64_t timeout_ns, int64_t num_launched = 0);

  int count() const { return static_cast<int>(num_launched_ - num_waited_); }
  /// The number of launches so far.
  int64_t num_launched() const { return num_launched_; }

  /// Adds a step, which the caller launches now.
  void add(size_t program_index);
  /// The newest step begins after all work enqueued on `stream` so far. If no step precedes it, it
  /// begins now: this relates the device's clock to the host's.
  void mark_begin(cudaStream_t stream);
  /// The newest step ends after all work enqueued on `stream` so far.
  void mark_end(cudaStream_t stream);

  /// Says that another rank has failed, and where the oldest step waits for it: "rank 0, step 5 of
  /// program step, stream comm.data, task 31 (all_reduce head): in group data: rank 1 has ended".
  std::string describe_oldest(const std::string& reason) const;

  /// Waits for the end of the oldest step, which remains in the list. Throws AbortedError if
  /// another rank fails meanwhile, since its part of the calls never arrives, TaskError if the step
  /// must be stuck, and DeviceError if it fails.
  void wait_for_oldest();
  /// The time between the end of the last step waited for and the return of that wait.
  std::chrono::nanoseconds lateness() const { return lateness_; }
  /// Removes the oldest step.
  void drop_oldest() { ++num_waited_; }
  void drop_all() { num_waited_ = num_launched_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Step {
    size_t program_index = 0;
    int64_t number = 0;  // of the launches
    Clock::time_point launched = {};
    CudaEvent ended;  // after the step and its reads
    NvtxSpan range;
  };

  /// Durations of a program's steps.
  struct History {
    int64_t num_ended = 0;
    std::chrono::nanoseconds longest = {};
  };

  Step& oldest() { return steps_[static_cast<size_t>(num_waited_ % kMost)]; }
  const Step& oldest() const { return steps_[static_cast<size_t>(num_waited_ % kMost)]; }
  Step& newest() { return steps_[static_cast<size_t>((num_launched_ - 1) % kMost)]; }
  std::optional<std::chrono::nanoseconds> patience(const History& history) const;
  std::string describe(const Step& step) const;
  void await_standstill(const Step& step) const;
  std::string describe_stuck(const Step& step, std::chrono::duration<double> waited) const;
  void wait_on_device(const Step& step) const;
  Clock::time_point end_of(const Step& step, bool had_ended) const;

  const DeviceRank& rank_;
  std::chrono::nanoseconds timeout_;
  std::vector<History> histories_;  // by program
  std::array<Step, kMost> steps_;   // used in turn
  int64_t num_launched_;
  int64_t num_waited_;               // of the launches
  CudaEvent last_ended_;             // the last step waited for: on the device, and
  Clock::time_point last_end_ = {};  // on the host's clock
  std::chrono::nanoseconds lateness_ = {};
};

}  // namespace braid
