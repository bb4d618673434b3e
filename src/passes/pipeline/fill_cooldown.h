#pragma once

#include "passes/memory/recompute.h"
#include "passes/pass.h"

namespace braid {

struct FillCooldownOptions {
  /// False: the pass leaves the program alone.
  bool enabled = true;
  /// What the backward makes again, so that it need not be kept.
  RecomputeOptions recompute;
};

/// Keeps weight gradients for the cool-down of a pipeline (the backwards behind a rank's last
/// forward, and what follows them), so that gradients come sooner to the stages in front, and the
/// rank computes while its last one passes them.
///   before: F(2)  D(0) W(0) send  D(1) W(1) send  D(2) W(2) send       D, W: dgrads and wgrads
///   after:  F(2)  D(0) send W(0)  D(1) send  D(2) send  W(1) W(2)
/// - Each backward job of the cool-down sends its message in front of all its weight gradients.
/// - The last weight gradients of the last virtual stage, head included, wait until the rank's last
///   message has left: as many as take the arithmetic of the dgrads that this message still has to
///   pass, those of the layers in front of the rank's first one. Of backwards in front of the last
///   forward only so many wait that a rank keeps no more microbatches than the first one does.
///   The last virtual stage, because in the cool-down of interleaved stages all ranks do the same:
///   only a rank that begins its cool-down earlier ends it earlier.
/// Where the backward makes activations again, what waits keeps more of a microbatch than the
/// forward does. Then only so many wait that the rank needs no more memory than before and, if all
/// layers are made again, what the first rank keeps of more microbatches.
/// Every gradient is added up in the order of microbatches. Tasks of phase wgrad or comm that
/// depend on a moved one move along; where another would have to, it stays. Nothing waits for the
/// last message on a rank whose last backward sends none: the first one.
/// Counts moved weight gradients. Rounding does not change. Place: behind what delays weight
/// gradients within jobs, in front of what moves reductions of gradients to where these are ready.
/// Source: the cool-down of ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2023), for whole
/// backwards of any schedule, and measured in layers instead of ranks.
PassResult fill_cooldown(Program program, const FillCooldownOptions& options = {});

Pass fill_cooldown_pass(const PipelineOptions& options);

}  // namespace braid
