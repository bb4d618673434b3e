#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/program.h"

namespace braid {

/// One task as it ran (or was simulated), in integer nanoseconds since the start of the step.
struct TimelineTask {
  static constexpr uint32_t kNoSequence = UINT32_MAX;

  uint32_t stream = 0;  ///< index into RankTimeline::streams
  Phase phase = Phase::kForward;
  int32_t microbatch = -1;
  int32_t virtual_stage = -1;
  int32_t layer = -1;
  uint32_t name = 0;  ///< index into RankTimeline::names: "op site"
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t bytes = 0;  ///< of communication: a rank's larger operand; 0 for compute
  GroupKind group = GroupKind::kWorld;  ///< for communication: the dimension it belongs to
  bool communication = false;
  uint32_t op = 0;                  ///< index into RankTimeline::ops, if there are any
  uint32_t task = 0;                ///< position in the program that ran
  uint32_t sequence = kNoSequence;  ///< of communication with others: RankTimeline::sequences
  uint32_t call = 0;                ///< which of its sequence, from 0
  /// For communication: the time from its start until its last rank arrived (peer_waits.h). During
  /// the rest it moves bytes.
  int64_t wait_ns = 0;

  friend bool operator==(const TimelineTask&, const TimelineTask&) = default;
};

/// Communications of a rank whose n-th call belongs together with the n-th call of other ranks:
/// collectives of a group, or messages from one rank to another.
struct TimelineSequence {
  std::string name;        ///< equal on all of its ranks, and of no other sequence
  std::vector<int> ranks;  ///< in group order; messages: sender, receiver
  bool messages = false;

  friend bool operator==(const TimelineSequence&, const TimelineSequence&) = default;
};

/// What tasks of one spec do and what it costs at least (ops/op.h).
struct TimelineOp {
  std::string name;
  double flops = 0;
  double bytes = 0;  ///< read and written

  friend bool operator==(const TimelineOp&, const TimelineOp&) = default;
};

/// One piece of work of the device, where they were measured one by one: a kernel, a copy or a
/// fill.
struct TimelineKernel {
  static constexpr uint32_t kNoTask = UINT32_MAX;

  uint32_t task = kNoTask;  ///< index into RankTimeline::tasks; kNoTask: it belongs to none of them
  uint32_t name = 0;        ///< index into RankTimeline::kernel_names
  int64_t start_ns = 0;
  int64_t end_ns = 0;

  friend bool operator==(const TimelineKernel&, const TimelineKernel&) = default;
};

/// What the maker of a device says that it can do at most. 0: not known.
struct DevicePeaks {
  std::string name;
  double flops_per_s = 0;  ///< dense bf16 matrix products
  double bytes_per_s = 0;  ///< of its memory

  friend bool operator==(const DevicePeaks&, const DevicePeaks&) = default;
};

struct RankTimeline {
  int rank = 0;
  int64_t step = 0;
  std::vector<Stream> streams;
  std::vector<std::string> names;
  std::vector<TimelineTask> tasks;  ///< by start time within a stream

  // What not every executor knows.
  std::vector<TimelineOp> ops = {};
  std::vector<std::string> kernel_names = {};
  std::vector<TimelineKernel> kernels = {};  ///< by start time; none: only tasks were timed
  DevicePeaks device = {};
  std::string method = {};  ///< how it was timed, where an executor has several ways: "CUPTI"
  std::string remark = {};  ///< for people: what this timeline does not show, or why not better
  std::vector<TimelineSequence> sequences = {};
  int64_t clock_origin_ns = 0;  ///< time 0 on the clock of the rank's host; 0: not known
};

/// One step of some ranks, measured or simulated: both have this one format. Time 0 is the same
/// moment for all of them, as well as their clocks allow (rank_clocks.h).
struct Timeline {
  std::string source;  ///< "cpu", "cuda, CUPTI", "cuda, events", "sim"
  std::vector<RankTimeline> ranks;
};

}  // namespace braid
