#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct DelayLastWgradOptions {
  /// First layers of the stage whose weight gradients wait; more than there are: all.
  int64_t num_layers = 1;
};

/// Moves weight gradients of the first layers behind those of the embedding, in the last backward
/// of a step: they hide the reduction of the embedding, often the largest there is, which otherwise
/// nothing is left to hide.
///   before: dgrad(fc) wgrad(fc) dgrad(qkv) wgrad(qkv) wgrad(embedding)  reduce ...
///   after:  dgrad(fc) dgrad(qkv) wgrad(embedding) wgrad(fc) wgrad(qkv)  reduce ...
/// The layers' own reductions follow, as large as a layer. Only where the embedding is and its
/// gradient is reduced, and only of the microbatch that completes it. What depends on a weight
/// gradient and stands on the way moves along if it is of phase wgrad or comm; otherwise the weight
/// gradient stays. Operands of what moves live longer, at the end of a step, where few others do.
/// Counts moved weight gradients. Rounding does not change. Place: in front of what moves
/// reductions of gradients to where these are ready; behind `delay_wgrad`, which moves only in jobs
/// that send, and so none of those that move here.
PassResult delay_last_wgrad(Program program, const DelayLastWgradOptions& options = {});

Pass delay_last_wgrad_pass(const PipelineOptions& options);

}  // namespace braid
