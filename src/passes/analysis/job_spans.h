#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ir/program.h"
#include "parallel/schedule.h"

namespace braid {

/// Names a job: whether it is a backward, and its microbatch and virtual stage.
using JobKey = std::pair<bool, uint64_t>;

JobKey job_key(const Job& job);
/// The job of a task that computes, by its label.
JobKey job_key(const Label& label);

/// The jobs of a step, found by labels: the forward or backward (dgrad, or dgrad and wgrad) of a
/// microbatch through a virtual stage. Jobs are sorted by their first task. Weight gradients that a
/// schedule runs later belong to the job of their backward. A communication task (phase comm)
/// belongs to the job of the next later task with its microbatch and virtual stage; if there is
/// none, to the job of the last earlier one. Tasks that do nothing and tasks without a microbatch
/// belong to no job. O(tasks).
class JobSpans {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct JobSpan {
    bool is_backward = false;
    uint32_t begin = 0;       ///< first task
    uint32_t first = 0;       ///< first task that is not communication
    uint32_t last_dgrad = 0;  ///< backward: last task of phase dgrad
  };

  explicit JobSpans(const Program& program);

  const std::vector<JobSpan>& jobs() const { return jobs_; }
  /// The job of a task. A `recv` belongs to the job that reads its result, a `send` to the job that
  /// computed its data. kNone: no job.
  uint32_t job_of(uint32_t task) const { return job_of_[task]; }

 private:
  void find_compute(const Program& program);
  void find_communication(const Program& program);

  std::vector<JobSpan> jobs_;
  std::vector<uint32_t> job_of_;  // by task
};

}  // namespace braid
