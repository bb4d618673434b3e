#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"

namespace braid {

/// The jobs of a step, found by labels: forward or backward (dgrad, or dgrad and wgrad) of a
/// microbatch through a virtual stage, in the order in which they begin. Weight gradients that a
/// schedule does elsewhere belong to the job of their backward. Communication (phase comm) belongs
/// to the job of the next task behind it that has its microbatch and virtual stage, if there is
/// one, else to that of the last one in front of it. Tasks that do nothing, and those of no
/// microbatch, belong to none. O(tasks).
class JobSpans {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct JobSpan {
    bool is_backward = false;
    uint32_t begin = 0;       ///< its first task
    uint32_t first = 0;       ///< its first one that is no communication
    uint32_t last_dgrad = 0;  ///< backward: its last one of phase dgrad
  };

  explicit JobSpans(const Program& program);

  const std::vector<JobSpan>& jobs() const { return jobs_; }
  /// The job that a task belongs to; of a `recv` the one that reads it, of a `send` the one that
  /// made it. kNone: none.
  uint32_t job_of(uint32_t task) const { return job_of_[task]; }

 private:
  void find_compute(const Program& program);
  void find_communication(const Program& program);

  std::vector<JobSpan> jobs_;
  std::vector<uint32_t> job_of_;  // by task
};

}  // namespace braid
