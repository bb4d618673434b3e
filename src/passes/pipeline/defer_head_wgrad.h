#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct DeferHeadWgradOptions {
  bool enabled = false;
  /// How many microbatches to defer, counted from the end of the step; 0: all.
  int64_t limit = 0;
};

/// Moves the weight gradient of the output projection behind the rank's last backward, for the last
/// `limit` microbatches. There the rank would otherwise wait idle for earlier stages.
///   before: dgrad(head) wgrad(head) mb=0 ... send  dgrad(head) wgrad(head) mb=1 ... send
///   after:  dgrad(head) mb=0 ... send  dgrad(head) mb=1 ... send  wgrad(head) mb=0
///           wgrad(head) mb=1
/// The last microbatches are deferred, not the first as in Megatron-LM. So the gradient is
/// accumulated in microbatch order for every limit, with the same bits. Cost: the projection's
/// inputs and the gradients of the logits stay live until then; `limit` bounds this memory.
///
/// Tasks of phase wgrad or comm that depend on a moved task move with it: reductions of sharded
/// gradients, and the embedding's gradient if rank and weight are the same. If any other task
/// depends on it before the target place, it stays. A program that sends no backward message has no
/// bubble and is not changed.
///
/// Counts moved weight gradients. Rounding does not change. Place: before passes that move gradient
/// reductions to where gradients are ready. Also before split_ops: it may leave a gradient behind
/// the losses on some ranks only, and this pass would take that place for the last backward.
/// Source: Megatron-LM's defer_embedding_wgrad_compute and wgrad_deferral_limit.
PassResult defer_head_wgrad(Program program, const DeferHeadWgradOptions& options = {});

Pass defer_head_wgrad_pass(const PipelineOptions& options);

}  // namespace braid
