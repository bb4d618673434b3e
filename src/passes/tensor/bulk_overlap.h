#pragma once

#include "passes/pass.h"
#include "passes/tensor/tensor_sites.h"

namespace braid {

struct BulkOverlapOptions {
  SiteOverlaps sites = default_site_overlaps();
  int comm_priority = 1;  ///< of the stream, if the pass makes it
};

/// Lets the communication of tensor ranks run beside matrix products that do not depend on it. For
/// a column-parallel linear with sequence parallelism, whose input is gathered again in the
/// backward:
///   before: linear_dgrad(dy, w -> dx)  rmsnorm(h -> n)  all_gather(n -> x)
///           linear_wgrad(x, dy -> rw g)  reduce_scatter(dx -> d)  rmsnorm_backward(d, ...)
///   after:  rmsnorm(h -> n)  all_gather(n -> x) comm.tensor  linear_dgrad(dy, w -> dx)
///           reduce_scatter(dx -> d) comm.tensor  linear_wgrad(x, dy -> rw g)
///           rmsnorm_backward(d, ...)
/// Without sequence parallelism an all_reduce of dx stands for the reduce_scatter, and nothing is
/// gathered. So d is waited for where it is read, behind the wgrad.
///
///  - Site NAME_wgrad with kBulk: what communicates the result of NAME's dgrad moves to directly
///  behind it, in
///    front of the wgrad (and of anything else that it does not depend on).
///  - Site NAME_dgrad with any method but kNone (one that sends its own result away in pieces can
///    have a gather under it as well): the all-gather that NAME's wgrad reads moves in front of the
///    product before the wgrad, which is mostly NAME's dgrad (in the W jobs of zero-bubble
///    schedules the wgrad before), together with what makes its input in between, unless that has
///    products itself.
/// All communication of tensor ranks goes to the stream "comm.tensor" (see
/// move_tensor_communication), so that these two can run; what is needed at once waits as before.
///
/// Counts calls that move to another place. Rounding does not change. Ensures:
/// tasks that conflict keep their order; ranks whose programs are equal up to the rank make their
/// calls in one order. Place: behind ring_exchange, which takes the communication that it splits.
/// Source: Megatron-LM's linear_with_grad_accumulation_and_async_allreduce; Paddle's
/// column-parallel backward (dX, all-reduce, dW); Transformer Engine's bulk overlap.
PassResult bulk_overlap(Program program, const BulkOverlapOptions& options);

Pass bulk_overlap_pass(const PipelineOptions& options);

}  // namespace braid
