#pragma once

#include <cstdint>
#include <optional>

#include "passes/pass.h"

namespace braid {

struct OverlapGradReduceOptions {
  /// Bytes of the step buffers that hold whole gradients at one time, at most. Not set: those of
  /// two units.
  std::optional<int64_t> budget_bytes = {};
};

/// Moves each communication of gradients directly behind the last task that it depends on, so that
/// it can run under the rest of the backward. Communications that become possible at the same place
/// keep their order. Tasks that round gradients before a communication, and tasks that add its
/// result to the main gradients, move with it.
///   before: wgrad(b -> rw gb)  wgrad(a -> rw ga)  all_reduce(-> rw ga)  all_reduce(-> rw gb)
///   after:  wgrad(b -> rw gb)  all_reduce(-> rw gb)  wgrad(a -> rw ga)  all_reduce(-> rw ga)
/// Gradient communication has phase comm and writes a buffer of role grad or main_grad. Two kinds
/// are limited:
///  - A communication that follows another one, in a group that also carries activations (partial
///    sums of tensor ranks), stays. It cannot leave the compute stream, which would wait there for
///    the first one.
///  - A communication between stages (a tied embedding) stays behind the last message, because the
///    other stage reaches it only after that message.
///
/// Adjacent gradient norms are sorted into the order of the reductions, so that all norms except
/// those of the last gradients run beside the last reductions.
///
/// If gradients are sharded, the whole gradient of a unit is a step buffer (role grad; main_grad if
/// it is a sum over all microbatches, as with ShardKind::kOptimizer). Its memory
/// returns to the compute stream when the next unit's gradient is reduced and another whole
/// gradient begins:
///   before: wgrad(c -> gc)  wgrad(b -> gb)  reduce_scatter(gc -> sc)  reduce_scatter(gb -> sb) ...
///   after:  wgrad(c -> gc)  reduce_scatter(gc -> sc)  wgrad(b -> gb)  reduce_scatter(gb -> sb)
///           undefine(-> gc)  wgrad(a -> ga)  reduce_scatter(ga -> sa)  undefine(-> gb)  ...
/// A reduction can therefore take as long as the backward of a unit. At most two whole gradients
/// exist at a time, unless a unit's backward is cut in two (zero-bubble schedules,
/// `delay_last_wgrad`). With a budget, the mirror image of that of `prefetch_parameters`: compute
/// takes the memory of the oldest gradients that are reduced where another gradient begins for
/// which the budget has no room, and waits there for their reduction. Where even that does not
/// suffice, it takes that of all that it can. Gradients after which no other begins are returned
/// behind the norms: no task needs their memory, and compute would otherwise wait for all
/// reductions before the first norm.
///
/// Counts moved tasks and returned buffers. Rounding does not change. Ensures: conflicting tasks
/// keep their order. The order of collectives in a group may change, in the same way on all ranks
/// whose programs are equal up to rank. Place: before streams and events are assigned. Source:
/// PyTorch Distributed (Li et al., VLDB 2020, section 3.2.3) and Megatron's overlap_grad_reduce, as
/// a program rewrite instead of hooks.
PassResult overlap_grad_reduce(Program program, const OverlapGradReduceOptions& options = {});

Pass overlap_grad_reduce_pass(const PipelineOptions& options);

}  // namespace braid
