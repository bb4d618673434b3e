#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/program.h"

namespace braid {

/// One task as it ran (or was simulated), in integer nanoseconds since the start of the step.
struct TimelineTask {
  uint32_t stream = 0;  ///< index into RankTimeline::streams
  Phase phase = Phase::kForward;
  int32_t microbatch = -1;
  int32_t virtual_stage = -1;
  int32_t layer = -1;
  uint32_t name = 0;  ///< index into RankTimeline::names: "op site"
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t bytes = 0;                    ///< bytes communicated, 0 for compute
  GroupKind group = GroupKind::kWorld;  ///< for communication: the dimension it belongs to
  bool communication = false;

  friend bool operator==(const TimelineTask&, const TimelineTask&) = default;
};

struct RankTimeline {
  int rank = 0;
  int64_t step = 0;
  std::vector<Stream> streams;
  std::vector<std::string> names;
  std::vector<TimelineTask> tasks;  ///< by start time within a stream
};

/// One step of some ranks, measured or simulated: both have this one format.
struct Timeline {
  std::string source;  ///< "cpu", "cuda", "sim"
  std::vector<RankTimeline> ranks;
};

}  // namespace braid
