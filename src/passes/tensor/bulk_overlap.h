#pragma once

#include "passes/pass.h"
#include "passes/tensor/tensor_sites.h"

namespace braid {

struct BulkOverlapOptions {
  SiteOverlaps sites = default_site_overlaps();
  int comm_priority = 1;  ///< of the stream "comm.tensor", if this pass creates it
};

/// Lets the communication of tensor ranks run beside matrix products that do not depend on it. For
/// a column-parallel linear with sequence parallelism, whose input is gathered again in the
/// backward:
///   before: linear_dgrad(dy, w -> dx)  rmsnorm(h -> n)  all_gather(n -> x)
///           linear_wgrad(x, dy -> rw g)  reduce_scatter(dx -> d)  rmsnorm_backward(d, ...)
///   after:  rmsnorm(h -> n)  all_gather(n -> x) comm.tensor  linear_dgrad(dy, w -> dx)
///           reduce_scatter(dx -> d) comm.tensor  linear_wgrad(x, dy -> rw g)
///           rmsnorm_backward(d, ...)
/// Products of FP8 copies, whose columns are gathered apart, are treated alike, also where tensor
/// ranks gather dy for a row-parallel linear:
///   before: all_gather(p8 -> dy8)  scaled_linear_dgrad(dy8, ...)  all_gather(p8t -> b)
///           join_blocks(b -> dy8t)  scaled_linear_wgrad(..., dy8t, ...)
///   after:  all_gather(p8 -> dy8)*  all_gather(p8t -> b)*  scaled_linear_dgrad  join_blocks  ...
/// Where attention's backward comes next (behind its last matrix, whose dgrad is the shortest of a
/// layer), the wgrad and its join_blocks move behind it, so that it hides the gather of columns
/// too. Compute waits for d only where d is read, after the wgrad. Without sequence parallelism, an
/// all_reduce of dx replaces the reduce_scatter and nothing is gathered.
///
///  - Site NAME_wgrad with kBulk: the communication of the result of NAME's dgrad moves
///    directly behind that dgrad, before the wgrad and before all other tasks that it does not
///    depend on.
///  - Site NAME_dgrad with any method but kNone (including a dgrad that sends its own result in
///    pieces): the all-gather that NAME's wgrad reads moves before the product that precedes the
///    wgrad. This product is usually NAME's dgrad; in the W jobs of zero-bubble schedules it is the
///    previous wgrad. Of a product in pieces it is the first piece behind the last block that a
///    ring brings, because blocks and gathers come one after the other. The tasks in between that
///    compute the gather's input move too. If these include a product, nothing moves.
/// All communication of tensor ranks moves to the stream "comm.tensor" (see
/// move_tensor_communication), so that these two can run there. Communication whose result is
/// needed at once is waited for as before.
///
/// Counts calls and wgrads that move to another place. Rounding does not change. Ensures:
/// conflicting tasks keep their order; ranks whose programs are equal up to rank make their calls
/// in the same order. Place: after ring_exchange, which takes the communication that it splits.
/// Source: Megatron-LM's linear_with_grad_accumulation_and_async_allreduce; Paddle's
/// column-parallel backward (dX, all-reduce, dW); Transformer Engine's bulk overlap.
PassResult bulk_overlap(Program program, const BulkOverlapOptions& options);

Pass bulk_overlap_pass(const PipelineOptions& options);

}  // namespace braid
