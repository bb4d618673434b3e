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
  int64_t bytes = 0;  ///< for communication: a rank's larger operand; 0 for compute
  GroupKind group = GroupKind::kWorld;  ///< for communication: the kind of its group
  bool communication = false;
  uint32_t op = 0;                  ///< index into RankTimeline::ops, if there are any
  uint32_t task = 0;                ///< position in the program
  uint32_t sequence = kNoSequence;  ///< for communication with other ranks: index into
                                    ///< RankTimeline::sequences
  uint32_t call = 0;                ///< index of the call in its sequence, from 0
  /// For communication: the time from its start until its last rank arrived (peer_waits.h). During
  /// the rest it moves bytes.
  int64_t wait_ns = 0;

  friend bool operator==(const TimelineTask&, const TimelineTask&) = default;
};

/// Communications of a rank whose n-th call matches the n-th call of other ranks: collectives of a
/// group, or messages from one rank to another.
struct TimelineSequence {
  std::string name;        ///< equal on all of its ranks, and unique to this sequence
  std::vector<int> ranks;  ///< in group order; messages: sender, receiver
  bool messages = false;

  friend bool operator==(const TimelineSequence&, const TimelineSequence&) = default;
};

/// The work of the tasks of one spec, and its minimum cost (ops/op.h).
struct TimelineOp {
  std::string name;
  double flops = 0;
  double bytes = 0;  ///< read and written

  friend bool operator==(const TimelineOp&, const TimelineOp&) = default;
};

/// One piece of device work, if the device was timed at that level: a kernel, a copy or a fill.
struct TimelineKernel {
  static constexpr uint32_t kNoTask = UINT32_MAX;

  uint32_t task = kNoTask;  ///< index into RankTimeline::tasks; kNoTask: it belongs to no task
  uint32_t name = 0;        ///< index into RankTimeline::kernel_names
  int64_t start_ns = 0;
  int64_t end_ns = 0;

  friend bool operator==(const TimelineKernel&, const TimelineKernel&) = default;
};

/// Peak rates of a device according to its vendor. 0: unknown.
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

  // Only some executors know the following.
  std::vector<TimelineOp> ops = {};
  std::vector<std::string> kernel_names = {};
  std::vector<TimelineKernel> kernels = {};  ///< by start time; empty: only tasks were timed
  DevicePeaks device = {};
  std::string method = {};  ///< how it was timed, if an executor has several ways: "CUPTI"
  std::string remark = {};  ///< for people: limits of this timeline, and their reason
  std::vector<TimelineSequence> sequences = {};
  int64_t clock_origin_ns = 0;  ///< time 0 on the clock of the rank's host; 0: unknown
};

/// One step of some ranks, measured or simulated in the same format. Time 0 is the same moment for
/// all of them, up to the accuracy of their clocks (rank_clocks.h).
struct Timeline {
  std::string source;  ///< "cpu", "cuda, CUPTI", "cuda, events", "sim"
  std::vector<RankTimeline> ranks;
};

}  // namespace braid
