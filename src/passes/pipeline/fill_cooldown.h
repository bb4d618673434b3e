#pragma once

#include "passes/memory/recompute.h"
#include "passes/pass.h"

namespace braid {

struct FillCooldownOptions {
  /// False: the pass does not change the program.
  bool enabled = true;
  /// The activations that the backward recomputes, and so need not be kept.
  RecomputeOptions recompute;
};

/// Delays weight gradients in the cool-down of a pipeline (the backwards behind a rank's last
/// forward, and what follows them). Earlier stages receive their gradients sooner, and the rank
/// computes while they finish.
///   before: F(2)  D(0) W(0) send  D(1) W(1) send  D(2) W(2) send       D, W: dgrads and wgrads
///   after:  F(2)  D(0) send W(0)  D(1) send  D(2) send  W(1) W(2)
/// - Each backward job of the cool-down sends its message before all its weight gradients.
/// - The last weight gradients of the last virtual stage, head included, wait until the rank has
///   sent its last message. Their arithmetic is at most that of the dgrads that this message still
///   has to pass, those of the layers in front of the rank's first one. Weight gradients of
///   backwards before the last forward wait only while the rank keeps no more microbatches than
///   the first rank does.
/// - Only the last virtual stage, because with interleaved stages all ranks do the same in the
///   cool-down: a rank ends its cool-down earlier only if it begins it earlier.
///
/// With recompute, a waiting weight gradient keeps more of a microbatch than the forward does. Then
/// fewer wait, so that the rank needs no more memory than before. If all layers are recomputed, the
/// limit also includes what the first rank keeps of additional microbatches.
///
/// Every gradient is accumulated in microbatch order. Tasks of phase wgrad or comm that depend on a
/// moved task move with it; if any other task depends on it, it stays. The first rank's last
/// backward sends no message, so nothing waits for one there.
///
/// Counts moved weight gradients. Rounding does not change. Place: after passes that delay weight
/// gradients within jobs, before passes that move gradient reductions to where gradients are ready.
/// Source: the cool-down of ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2023). Deviations:
/// whole backwards of any schedule, and a distance measured in layers instead of ranks.
PassResult fill_cooldown(Program program, const FillCooldownOptions& options = {});

Pass fill_cooldown_pass(const PipelineOptions& options);

}  // namespace braid
