#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trace/timeline.h"

namespace braid {

/// All tasks of one op. Work of a task is its kernels where those were timed, else the task.
struct OpTime {
  std::string op;
  std::string_view kind;  ///< op_kind
  int64_t num_tasks = 0;
  int64_t busy_ns = 0;  ///< some work of the task ran, summed over tasks
  double flops = 0;
  double bytes = 0;     ///< that must cross device memory
  double least_ns = 0;  ///< what the device's peaks allow at best; 0: not known

  friend bool operator==(const OpTime&, const OpTime&) = default;
};

/// A time in which nothing of a rank ran.
struct Gap {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  uint32_t after = TimelineKernel::kNoTask;   ///< task whose work ended last; none at the start
  uint32_t before = TimelineKernel::kNoTask;  ///< task whose work came next

  int64_t duration_ns() const { return end_ns - start_ns; }
  friend bool operator==(const Gap&, const Gap&) = default;
};

/// Where the step of one rank went, op by op.
struct StepBreakdown {
  int rank = 0;
  std::vector<OpTime> ops;  ///< longest first
  int64_t no_task_ns = 0;   ///< work that belongs to no task
  int64_t idle_ns = 0;      ///< of all gaps, from the start of the step to its last end on any rank
  int64_t num_gaps = 0;
  std::vector<Gap> longest;  ///< of the gaps, at most kMaxGaps

  static constexpr size_t kMaxGaps = 8;
};

/// Throws InternalError if a task or kernel names what its timeline does not have.
std::vector<StepBreakdown> break_down(const Timeline& timeline);

/// A step in one line, shares of the time of all ranks:
///   "step 2, cuda, CUPTI, 81.25 ms: matrix products 62.1%, attention 14.0%, idle 2.3%; <remarks>"
std::string describe_step(const Timeline& timeline);

/// What kind of work an op is, for a reader: `op_kind_name`; of an op that is not known
/// "elementwise".
std::string_view op_kind(std::string_view op);

}  // namespace braid
