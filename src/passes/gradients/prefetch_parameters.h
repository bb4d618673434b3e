#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct PrefetchParametersOptions {
  /// How many units ahead of its use a gather starts; 0: at its use. One unit more than this is
  /// gathered at a time.
  int64_t units = 1;
  /// Gathers of updated weights into their persistent buffers start at the beginning of the step,
  /// one after the other, on all pipeline ranks alike, and not `units` ahead of their use.
  bool aligns = true;
};

/// Starts gathers of weights early, so that they run under the compute of the units before.
/// Sharded parameters, `units` = 1; ga and gb are of role gathered:
///   before: all_gather(a -> ga)  x(ga)  all_gather(b -> gb)  y(gb)  all_gather(c -> gc)  z(gc)
///   after:  undefine(-> ga)  all_gather(a -> ga)  undefine(-> gb)  all_gather(b -> gb)  x(ga)
///           undefine(-> gc)  all_gather(c -> gc)  y(gb)  z(gc)
/// The step is one sequence of units, in the order in which it uses them: through the layers of a
/// forward, through those of a backward in reverse, from job to job of a schedule. A gather starts
/// as soon as the unit that is units + 1 places ahead of it has been used for the last time; so no
/// more than units + 1 are gathered at a time, besides such as are used again much later (a tied
/// embedding). The `undefine` hands the memory to the
/// communication stream there, whether or not the gather moves. A unit that is gathered twice in a
/// row (the last one of a forward is the first one of the backward) is gathered once.
///
/// Updated weights (role param, whole on every rank) need no memory beside their own.
/// Candidates: all_gather of phase comm on a compute stream that writes one of these in full. Only
/// the order is decided here; assign_streams takes gathers to a stream of their own. Counts gathers
/// that move, whose memory is handed over, or that are dropped. Rounding does not change. Place:
/// behind overlap_grad_reduce, whose reductions take turns with gathers on one stream: a gather
/// goes in front of the reduction of the unit whose last use it waits for, since it is needed
/// first.
/// Source: Zhao et al., PyTorch FSDP, VLDB 2023, section 3.3; Megatron-FSDP; Megatron's
/// overlap_param_gather and align_param_gather.
PassResult prefetch_parameters(Program program, const PrefetchParametersOptions& options);

Pass prefetch_parameters_pass(const PipelineOptions& options);

/// Whether a search may keep units of sharded weights whole: not where recompute in some of the
/// layers says that memory is short, since another layer costs more than a gather.
bool may_keep_units_whole(const RunConfig& config);

/// How many units are kept whole (overlap.param_gather_whole_units); one of the pass's axes where
/// `may_keep_units_whole`.
OverlapAxis whole_units_axis();

}  // namespace braid
