#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trace/timeline.h"

namespace braid {

/// All tasks of one op. The work of a task is its kernels if they were timed, otherwise the task.
struct OpTime {
  std::string op;
  std::string_view kind;  ///< op_kind
  int64_t num_tasks = 0;
  int64_t busy_ns = 0;  ///< time in which a kernel of the task ran, summed over tasks
  double flops = 0;
  double bytes = 0;     ///< that must be read from and written to device memory
  double least_ns = 0;  ///< the least time by the device's peaks; 0: unknown

  friend bool operator==(const OpTime&, const OpTime&) = default;
};

/// A time in which the rank ran nothing.
struct Gap {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  uint32_t after = TimelineKernel::kNoTask;   ///< task whose work ended last; none at the start
  uint32_t before = TimelineKernel::kNoTask;  ///< task whose work came next

  int64_t duration_ns() const { return end_ns - start_ns; }
  friend bool operator==(const Gap&, const Gap&) = default;
};

/// The time of one rank's step by op.
struct StepBreakdown {
  int rank = 0;
  std::vector<OpTime> ops;  ///< longest first
  int64_t no_task_ns = 0;   ///< time of work that belongs to no task
  int64_t idle_ns = 0;  ///< sum of all gaps, from the start of the step to its last end on any rank
  int64_t num_gaps = 0;
  std::vector<Gap> longest;  ///< the longest gaps, at most kMaxGaps

  static constexpr size_t kMaxGaps = 8;
};

/// Throws InternalError if a task or kernel has an index that its timeline lacks.
std::vector<StepBreakdown> break_down(const Timeline& timeline);

/// A step in one line, with shares of the time of all ranks:
///   "step 2, cuda, CUPTI, 81.25 ms: matrix products 62.1%, attention 14.0%, idle 2.3%; <remarks>"
std::string describe_step(const Timeline& timeline);

/// The kind of an op, for people: `op_kind_name`; "elementwise" for an unknown op.
std::string_view op_kind(std::string_view op);

}  // namespace braid
