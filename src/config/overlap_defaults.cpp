#include "config/overlap_defaults.h"

namespace braid {
namespace {

void add_messages(OverlapConfig& overlap) {
  overlap.overlap_p2p_comm = true;
  overlap.overlap_p2p_comm_warmup_flush = true;
  overlap.overlap_p2p_backward_on_comm_stream = true;
  overlap.overlap_p2p_wgrad_delayed_layer_number = 1;
  overlap.overlap_p2p_with_transformer_layer_wgrad = true;
  overlap.fill_cooldown = true;
}

/// Splits products only if rounding may change. Without sequence parallelism there are only
/// all-reduces, after two products of a layer.
void add_tensor(const ParallelConfig& parallel, OverlapConfig& overlap) {
  const bool rows = parallel.sequence_parallel;
  overlap.tp_comm_overlap = true;
  overlap.tp_comm_overlap_ag = overlap.may_change_rounding && rows;
  overlap.tp_comm_overlap_rs = overlap.may_change_rounding && rows;
  overlap.tp_comm_bulk_dgrad = rows;
  if (overlap.may_change_rounding && !rows) {
    overlap.tp_comm_overlap_sites = {"fc2_fprop=chunked", "proj_fprop=chunked"};
  }
}

}  // namespace

OverlapConfig overlap_in_force(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  OverlapConfig overlap = config.overlap;
  if (overlap.mode != "auto") {
    return overlap;
  }
  overlap.overlap_grad_reduce = true;
  overlap.overlap_grad_reduce_delayed_wgrad_layers = 1;
  if (parallel.shard != "none" && parallel.data * parallel.context > 1) {
    const bool updates_parts = parallel.shard != "parameters";
    overlap.overlap_param_gather = true;
    overlap.overlap_param_gather_with_optimizer_step = updates_parts;
    overlap.align_param_gather = updates_parts;
  }
  overlap.overlap_context_comm = parallel.context > 1;
  overlap.overlap_moe_expert_parallel_comm = parallel.expert * parallel.expert_tensor > 1;
  if (parallel.pipeline > 1) {
    add_messages(overlap);
  }
  if (parallel.tensor > 1) {
    add_tensor(parallel, overlap);
  }
  return overlap;
}

}  // namespace braid
