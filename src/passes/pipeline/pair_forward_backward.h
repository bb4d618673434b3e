#pragma once

#include <vector>

#include "parallel/paired_jobs.h"
#include "passes/pass.h"

namespace braid {

struct PairForwardBackwardOptions {
  /// Which jobs are woven, as `paired_jobs` says of the schedule and rank of the program. Empty:
  /// the pass leaves the program alone.
  std::vector<JobPair> pairs;
  int comm_priority = 1;  ///< of the stream of tensor ranks, if the pass makes it
};

/// Weaves neighbouring jobs that do not depend on each other, so that communication of tensor and
/// context ranks of one runs under compute of the other. Of a dense layer with tensor ranks, F is a
/// forward and B the backward of another microbatch; a star marks calls, on stream comm.tensor:
///   before: F.attention  all_reduce  F.mlp  all_reduce  ...  B.mlp  all_reduce  B.attention ...
///   after:  F.attention  all_reduce*  B.mlp  all_reduce*  F.mlp  all_reduce*  B.attention  ...
/// Each job is its tasks in their order, with what stands between them (gathers of weights, weight
/// gradients of other jobs); `weave` says how two are merged. It goes by the prices of
/// PassContext::cost_model, which are made equal for all ranks of a group by looking at a group's
/// shape only and not at where it lies; without a model, or with context ranks (whose attention
/// steps differ from rank to rank), a matrix product, an attention and a call count 1 each, and
/// everything else next to nothing.
///
/// A pair whose merge would not end earlier stays as it is, and so does one that is not together.
/// All tensor communication goes to one stream (`move_tensor_communication`); that of context ranks
/// is placed by `assign_streams`. Events are dropped. Memory: both jobs' activations live at a
/// time, and those of the schedule's deeper warm-up (docs/pipeline.md).
///
/// Counts pairs that are woven. Rounding does not change. Ensures: tasks that conflict keep their
/// order; ranks with equal schedules and equal programs up to the rank make their calls in one
/// order. Place: behind bulk_overlap and what moves weight gradients, whose orders within a job it
/// takes as they are; in front of overlap_grad_reduce and prefetch_parameters, which then see units
/// in the order in which they are used. Source: Megatron-LM's combined 1F1B
/// (overlap_moe_expert_parallel_comm), Paddle's 1f1b_backward_forward_overlap; halves: Wang et al.,
/// Domino, 2024.
PassResult pair_forward_backward(Program program, const PairForwardBackwardOptions& options,
                                 const PassContext& context);

Pass pair_forward_backward_pass(const PipelineOptions& options);

}  // namespace braid
