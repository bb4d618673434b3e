#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace braid {

/// Is told of each task of a step while the host enqueues (or captures) its work.
class TaskObserver {
 public:
  virtual ~TaskObserver() = default;

  /// `stream` is the one that all others of the step start after.
  virtual void start_step(cudaStream_t) {}
  /// After the task's waits, before its work. `task` is its place in the program.
  virtual void start_task(size_t task, cudaStream_t stream) = 0;
  /// After its work, before its event is recorded.
  virtual void end_task(size_t task, cudaStream_t stream) = 0;
};

}  // namespace braid
