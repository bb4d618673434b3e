#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct DelayLastWgradOptions {
  /// Number of first layers of the stage whose weight gradients are delayed. If the stage has fewer
  /// layers, all are.
  int64_t num_layers = 1;
};

/// In the last backward of a step, moves weight gradients of the first layers behind the weight
/// gradient of the embedding. They then hide the reduction of the embedding's gradient. This
/// reduction is often the largest one, and without the move no work is left to hide it.
///   before: dgrad(fc) wgrad(fc) dgrad(qkv) wgrad(qkv) wgrad(embedding)  reduce ...
///   after:  dgrad(fc) dgrad(qkv) wgrad(embedding) wgrad(fc) wgrad(qkv)  reduce ...
/// The reductions of the moved gradients, each the size of a layer, come last. Applies only on the
/// stage with the embedding, if its gradient is reduced, and only to the microbatch that completes
/// that gradient. Tasks between the two places that depend on a moved weight gradient move with it
/// if their phase is wgrad or comm; otherwise the weight gradient stays. Operands of moved tasks
/// live longer, but at the end of a step few other buffers are alive. Counts moved weight
/// gradients. Rounding does not change. Place: before passes that move reductions to where
/// gradients are ready; after `delay_wgrad`, which moves tasks only in jobs that send and so none
/// of these.
PassResult delay_last_wgrad(Program program, const DelayLastWgradOptions& options = {});

Pass delay_last_wgrad_pass(const PipelineOptions& options);

}  // namespace braid
