#pragma once

#include <cstddef>
#include <vector>

#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/task_observer.h"
#include "trace/task_timeline.h"

namespace braid {

/// Start and end of each task of one step by timed events around it, for steps that run task by
/// task. A start is the time when the stream reached the task, so it includes the host's time to
/// enqueue it.
class StepTimer : public TaskObserver {
 public:
  explicit StepTimer(size_t num_tasks);

  void start_step(cudaStream_t stream) override;
  void start_task(size_t task, cudaStream_t stream) override;
  void end_task(size_t task, cudaStream_t stream) override;

  /// Call after the whole step. By task; tasks that were not started since `start_step` have no
  /// times.
  std::vector<TaskTimes> times() const;

 private:
  CudaEvent step_;
  std::vector<CudaEvent> starts_;
  std::vector<CudaEvent> ends_;
  std::vector<bool> ran_;
};

}  // namespace braid
