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

/// A program with everything that its tasks need on the device.
struct BoundProgram {
  const Program* program = nullptr;
  std::vector<size_t> streams;             ///< indices into DeviceStreams, by stream of the program
  std::vector<const CudaKernel*> kernels;  ///< by task; null: the task does nothing
  std::vector<std::byte*> operands;        ///< parallel to Program::operands
  const MarkWords* marks = nullptr;        ///< null: no marks are needed
  std::vector<bool> is_marked = {};        ///< by task: whether it writes marks, if there are mark
                                           ///< words
};

/// An error together with its task.
class TaskError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

struct EnqueueOptions {
  TaskObserver* observer = nullptr;  ///< may be null
  /// Waits for the end of each task before it enqueues the next one, except after tasks that
  /// communicate with other ranks.
  bool wait_for_each = false;
  bool finite_checks = false;  ///< with `wait_for_each`: checks each task's outputs for NaN and
                               ///< infinity
};

/// Enqueues the tasks of a step on the streams of a rank, one by one in program order, with the
/// operations that order them; or captures them into a graph.
class StepEnqueuer {
 public:
  /// `streams` must outlive this object. Throws DeviceError.
  StepEnqueuer(int rank, DeviceStreams& streams);

  /// All streams of the program wait for the launch stream's earlier work, and it waits for them.
  /// Throws TaskError if a task throws; nothing after it is enqueued.
  void enqueue(const BoundProgram& bound, const EnqueueOptions& options);

  /// Captures a step as a graph and uploads it to the device. Throws TaskError.
  CudaGraphExec capture(const BoundProgram& bound);

  /// Loads the kernels of all compute tasks. Otherwise the driver loads each at its first launch
  /// (unless CUDA_MODULE_LOADING=EAGER, which loads all kernels of all libraries): it then holds a
  /// lock and waits until the device is idle. This can deadlock if the device's streams wait for
  /// another rank of this process whose thread waits for the lock. Captures load kernels, so this
  /// function captures a graph and discards it. Tasks that cannot be captured are skipped. NCCL's
  /// kernels are loaded by its first calls.
  void load_kernels(const BoundProgram& bound);

  /// Device memory for finite checks.
  int64_t workspace_bytes() const { return found_.size_bytes(); }
  /// A word of device memory to work in, while no step is in flight.
  uint64_t* word() const { return reinterpret_cast<uint64_t*>(found_.data()); }

 private:
  void enqueue_task(const BoundProgram& bound, TaskId id, const EnqueueOptions& options);
  void check_finite(const BoundProgram& bound, TaskId id, cudaStream_t stream);

  int rank_;
  DeviceStreams& streams_;
  DeviceArena found_;  // one word
};

}  // namespace braid
