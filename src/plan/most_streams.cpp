#include "plan/most_streams.h"

#include "parallel/schedule.h"

namespace braid {
namespace {

/// Streams of messages: to and from each peer, in each direction of the pipeline. If a rank has
/// stages of both ends, messages of one direction go to both neighbours. One more sums the
/// gradients of an embedding that the first and the last stage have.
size_t pipeline_streams(const RunConfig& config) {
  const ScheduleKind schedule = schedule_kind(config.parallel.schedule);
  const bool is_v = schedule == ScheduleKind::kZbV || schedule == ScheduleKind::kDualpipeV;
  const size_t messages = is_v ? 8 : 4;
  const bool has_copy =
      config.model.tied_embeddings.value_or(true) || config.model.mtp_depth.value_or(0) > 0;
  return config.parallel.pipeline == 1 ? 0 : messages + (has_copy ? 1 : 0);
}

}  // namespace

size_t most_streams(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  size_t streams = 1 + pipeline_streams(config);
  for (const int64_t size : {parallel.data * parallel.context, parallel.tensor, parallel.context,
                             parallel.expert * parallel.expert_tensor, parallel.ranks}) {
    streams += size > 1 ? 1 : 0;  // by kind of group; gradients are summed over context ranks, too
  }
  return streams + (config.memory.offload_layers != 0 ? 2 : 0);
}

}  // namespace braid
