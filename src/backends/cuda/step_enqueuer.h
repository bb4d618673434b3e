#pragma once

#include <cstddef>
#include <vector>

#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/device_streams.h"
#include "backends/cuda/kernel.h"
#include "backends/cuda/mark_words.h"
#include "backends/cuda/task_observer.h"
#include "base/errors.h"
#include "ir/program.h"

namespace braid {

/// A program with all that its tasks need on the device.
struct BoundProgram {
  const Program* program = nullptr;
  std::vector<size_t> streams;             ///< of DeviceStreams, by stream of the program
  std::vector<const CudaKernel*> kernels;  ///< by task; null: nothing is to be done
  std::vector<std::byte*> operands;        ///< parallel to Program::operands
  const MarkWords* marks = nullptr;        ///< null: nobody looks
  std::vector<bool> is_marked = {};        ///< by task: leaves marks, where there are words
};

/// An error with the task that it came from.
class TaskError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

struct EnqueueOptions {
  TaskObserver* observer = nullptr;  ///< null: nobody
  /// For the end of each task before the next is enqueued, but for those that meet other ranks.
  bool wait_for_each = false;
  bool finite_checks = false;  ///< with `wait_for_each`: look for NaN and infinity in between
};

/// Puts the tasks of a step on the streams of a rank, one by one in the order of the program, with
/// what orders them; or into a graph.
class StepEnqueuer {
 public:
  /// `streams` must outlive this. Throws DeviceError.
  StepEnqueuer(int rank, DeviceStreams& streams);

  /// All streams of the program start after what the launch stream did before, and it goes on after
  /// them. Throws TaskError for whatever a task throws; nothing behind it is enqueued.
  void enqueue(const BoundProgram& bound, const EnqueueOptions& options);

  /// A step as a graph, which the device has when this returns. Throws TaskError.
  CudaGraphExec capture(const BoundProgram& bound);

  /// Loads the kernels of all compute tasks, which the driver otherwise does at their first launch
  /// (unless CUDA_MODULE_LOADING=EAGER, which loads all kernels of all libraries): it then waits,
  /// with a lock, until the device is idle, and a device whose streams wait for another rank of
  /// this process, whose thread waits for the lock, never is. Captures do it, so this makes a graph
  /// and drops it. What cannot be captured stays as it is. NCCL's are loaded by its first calls.
  void load_kernels(const BoundProgram& bound);

  /// Device memory for finite checks.
  int64_t workspace_bytes() const { return found_.size_bytes(); }

 private:
  void enqueue_task(const BoundProgram& bound, TaskId id, const EnqueueOptions& options);
  void check_finite(const BoundProgram& bound, TaskId id, cudaStream_t stream);

  int rank_;
  DeviceStreams& streams_;
  DeviceArena found_;  // a word
};

}  // namespace braid
