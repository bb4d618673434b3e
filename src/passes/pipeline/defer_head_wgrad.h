#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct DeferHeadWgradOptions {
  bool enabled = false;
  /// Microbatches whose weight gradient waits, the last ones of the step; 0: all.
  int64_t limit = 0;
};

/// Moves the weight gradient of the output projection, of the last `limit` microbatches, behind the
/// rank's last backward, where its pipeline has nothing left to do but to wait for earlier stages.
///   before: dgrad(head) wgrad(head) mb=0 ... send  dgrad(head) wgrad(head) mb=1 ... send
///   after:  dgrad(head) mb=0 ... send  dgrad(head) mb=1 ... send  wgrad(head) mb=0  wgrad(head)
///   mb=1
/// The waiting ones are the last, and not the first as in Megatron-LM, because then the gradient is
/// added up in the order of microbatches whatever the limit: the same bits. Inputs of the
/// projection and gradients of the logits live until then: the price, and why there is a limit.
/// Tasks of phase wgrad or comm that depend on a moved one (reductions of sharded gradients, the
/// embedding's gradient where rank and weight are the same) move along; where another would have
/// to, nothing moves. A program that sends no backward message has no bubble, and is left alone.
/// Counts moved weight gradients. Rounding does not change. Place: in front of what moves
/// reductions of gradients to where these are ready, and of split_ops, which may leave a gradient
/// behind the losses, on some ranks only: there would not be the last backward. Source:
/// Megatron-LM's defer_embedding_wgrad_compute and wgrad_deferral_limit.
PassResult defer_head_wgrad(Program program, const DeferHeadWgradOptions& options = {});

Pass defer_head_wgrad_pass(const PipelineOptions& options);

}  // namespace braid
