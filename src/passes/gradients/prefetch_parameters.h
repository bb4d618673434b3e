#pragma once

#include <cstdint>
#include <optional>

#include "passes/pass.h"

namespace braid {

struct PrefetchParametersOptions {
  /// How many units before its use a gather starts; 0: at its use. At most `units` + 1 units are
  /// gathered at a time.
  int64_t units = 1;
  /// If true, gathers of updated weights into their persistent buffers, and of their FP8 copies
  /// once per step, ignore `units`: they start at the beginning of the step, or as soon as copies
  /// are made, one after the other, in the same way on all pipeline ranks.
  bool aligns = true;
  /// Bytes of the step buffers that hold gathered weights at one time, at most. Not set: `units`
  /// alone decides.
  std::optional<int64_t> budget_bytes = {};
  /// With a budget: gathers start as early as it permits, whatever `units` is. If false, they start
  /// no earlier than `units` says, and no earlier than the budget permits.
  bool fills_budget = true;
};

/// Starts gathers of weights early, so that they run under the compute of earlier units. Sharded
/// parameters, `units` = 1; ga and gb have role gathered:
///   before: all_gather(a -> ga)  x(ga)  all_gather(b -> gb)  y(gb)  all_gather(c -> gc)  z(gc)
///   after:  undefine(-> ga)  all_gather(a -> ga)  undefine(-> gb)  all_gather(b -> gb)  x(ga)
///           undefine(-> gc)  all_gather(c -> gc)  y(gb)  z(gc)
/// The step is one sequence of units in the order of their use: through the layers of a forward,
/// through those of a backward in reverse, from job to job of a schedule. A gather starts after the
/// last use of the unit that is `units` + 1 places before it in this sequence. So at most `units` +
/// 1 units are gathered at a time, plus units that are used again much later (a tied embedding).
/// The `undefine` gives the memory to the communication stream at that place, even if the gather
/// does not move. A unit that is gathered twice in a row (the last unit of a forward is the first
/// of the backward) is gathered once. Units in a row of one layer and job count as one: FP8 copies
/// and the other weights of a layer are two gathers.
///
/// Updated weights (role param, whole on every rank) need no extra memory. FP8 copies of them are
/// gathered once, into a buffer of the step that several jobs read. If replicas update parts of
/// their shard, the gather over the replicas stands directly in front of the first gather of the
/// shards, and moves with it. Candidates: an all_gather of
/// phase comm on a compute stream that writes one such buffer in full. This pass only
/// decides the order; assign_streams moves gathers to a stream of their own. Counts gathers that
/// are moved or dropped, or whose memory is handed over. Rounding does not change. Place: after
/// overlap_grad_reduce, because reductions and gathers share one stream. A gather goes before the
/// reduction of the unit whose last use it waits for, because its result is needed first. Source:
/// Zhao et al., PyTorch FSDP, VLDB 2023, section 3.3; Megatron-FSDP; Megatron's
/// overlap_param_gather and align_param_gather.
PassResult prefetch_parameters(Program program, const PrefetchParametersOptions& options);

Pass prefetch_parameters_pass(const PipelineOptions& options);

/// Whether a search may keep units of sharded weights gathered. False if some layers recompute:
/// memory is then short, and recomputing another layer costs more than a gather.
bool may_keep_units_whole(const RunConfig& config);

/// The axis for the number of units that stay gathered (overlap.param_gather_whole_units). The pass
/// uses it only if `may_keep_units_whole`.
OverlapAxis whole_units_axis();

}  // namespace braid
