#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace braid {

/// Is notified of each task of a step while the host enqueues (or captures) its work.
class TaskObserver {
 public:
  virtual ~TaskObserver() = default;

  /// All other streams of the step start after `stream`.
  virtual void start_step(cudaStream_t) {}
  /// Called after the task's waits, before its work. `task` is its position in the program.
  virtual void start_task(size_t task, cudaStream_t stream) = 0;
  /// Called after its work, before its event is recorded.
  virtual void end_task(size_t task, cudaStream_t stream) = 0;
};

}  // namespace braid
