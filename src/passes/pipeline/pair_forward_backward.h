#pragma once

#include <vector>

#include "parallel/paired_jobs.h"
#include "passes/pass.h"

namespace braid {

struct PairForwardBackwardOptions {
  /// The jobs to weave, from `paired_jobs` for the program's schedule and rank. Empty: the pass
  /// does not change the program.
  std::vector<JobPair> pairs;
  int comm_priority = 1;  ///< of stream comm.tensor, if the pass adds it
};

/// Weaves neighbouring jobs that do not depend on each other, so that tensor and context
/// communication of one job runs under compute of the other. Example: a dense layer with tensor
/// parallelism; F is a forward, B the backward of another microbatch, and a star marks calls on
/// stream comm.tensor:
///   before: F.attention  all_reduce  F.mlp  all_reduce  ...  B.mlp  all_reduce  B.attention ...
///   after:  F.attention  all_reduce*  B.mlp  all_reduce*  F.mlp  all_reduce*  B.attention  ...
/// A job consists of its tasks in order and the tasks between them (gathers of weights, weight
/// gradients of other jobs). `weave` defines how two jobs are merged.
///
/// Prices come from PassContext::cost_model. They are the same on all ranks of a group: only the
/// group's shape counts, not its position. Without a model, or with context ranks (whose attention
/// steps differ from rank to rank), a matrix product, an attention and a call cost 1 each and
/// everything else almost nothing.
///
/// A pair does not change if its merge would not end earlier, or if its jobs are not neighbours.
/// All tensor communication moves to one stream (`move_tensor_communication`); `assign_streams`
/// places context communication. Events are dropped. Memory: activations of both jobs live at the
/// same time, plus those of the schedule's deeper warm-up (docs/pipeline.md).
///
/// Counts woven pairs. Rounding does not change. Ensures: tasks that conflict keep their order;
/// ranks whose schedules are equal, and whose programs are equal up to the rank, make their calls
/// in one order. Place: after bulk_overlap and passes that move weight gradients, because this pass
/// keeps the order within a job. Before overlap_grad_reduce and prefetch_parameters, which then see
/// units in the order of their use. Source: Megatron-LM's combined 1F1B
/// (overlap_moe_expert_parallel_comm), Paddle's 1f1b_backward_forward_overlap; halves: Wang et al.,
/// Domino, 2024.
PassResult pair_forward_backward(Program program, const PairForwardBackwardOptions& options,
                                 const PassContext& context);

Pass pair_forward_backward_pass(const PipelineOptions& options);

}  // namespace braid
