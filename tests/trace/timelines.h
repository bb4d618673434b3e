#pragma once

#include "trace/timeline.h"

namespace braid {

/// A rank with the streams compute (0), dp (1), offload (2) and the name "op".
inline RankTimeline make_rank(int rank) {
  RankTimeline timeline;
  timeline.rank = rank;
  timeline.streams = {{"compute", StreamKind::kCompute, 0},
                      {"dp", StreamKind::kComm, 0},
                      {"offload", StreamKind::kCopy, 0}};
  timeline.names = {"op"};
  return timeline;
}

inline TimelineTask task_at(uint32_t stream, int64_t start_ns, int64_t end_ns) {
  TimelineTask task;
  task.stream = stream;
  task.start_ns = start_ns;
  task.end_ns = end_ns;
  return task;
}

inline TimelineTask communication_at(uint32_t stream, int64_t start_ns, int64_t end_ns,
                                     GroupKind group, int64_t bytes) {
  TimelineTask task = task_at(stream, start_ns, end_ns);
  task.communication = true;
  task.phase = Phase::kComm;
  task.group = group;
  task.bytes = bytes;
  return task;
}

}  // namespace braid
