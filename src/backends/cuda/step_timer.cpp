#include "backends/cuda/step_timer.h"

#include <cmath>

namespace braid {
namespace {

int64_t elapsed_ns(const CudaEvent& from, const CudaEvent& to) {
  float elapsed_ms = 0;
  BRAID_CUDA_CHECK(cudaEventElapsedTime(&elapsed_ms, from, to));
  return std::llround(double{elapsed_ms} * 1e6);
}

}  // namespace

StepTimer::StepTimer(size_t num_tasks) : step_(EventTiming::kTimed), ran_(num_tasks) {
  for (size_t i = 0; i < num_tasks; ++i) {
    starts_.emplace_back(EventTiming::kTimed);
    ends_.emplace_back(EventTiming::kTimed);
  }
}

void StepTimer::start_step(cudaStream_t stream) {
  ran_.assign(ran_.size(), false);
  BRAID_CUDA_CHECK(cudaEventRecord(step_, stream));
}

void StepTimer::start_task(size_t task, cudaStream_t stream) {
  BRAID_CUDA_CHECK(cudaEventRecord(starts_[task], stream));
}

void StepTimer::end_task(size_t task, cudaStream_t stream) {
  BRAID_CUDA_CHECK(cudaEventRecord(ends_[task], stream));
  ran_[task] = true;
}

std::vector<TaskTimes> StepTimer::times() const {
  std::vector<TaskTimes> times(ran_.size());
  for (size_t i = 0; i < ran_.size(); ++i) {
    if (ran_[i]) {
      times[i] = {elapsed_ns(step_, starts_[i]), elapsed_ns(step_, ends_[i])};
    }
  }
  return times;
}

}  // namespace braid
