#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct DelayWgradOptions {
  /// How many layers of a backward job delay their weight gradients, counted from the job's end. A
  /// number larger than the job's layers means all. The head counts as the last layer, so its
  /// weight gradient waits only if those of all layers of its stage do.
  int64_t num_layers = 1;
  /// True: delays all weight gradients of a layer. False: only those of attention.
  bool whole_layers = true;
};

/// Moves weight gradients of the last layers of a backward job behind the message that sends the
/// job's result. The message leaves earlier, and the weight gradients hide it.
///   before: dgrad(fc) wgrad(fc) dgrad(qkv) wgrad(qkv) send    fc, qkv of the job's last layer
///   after:  dgrad(fc) dgrad(qkv) send wgrad(fc) wgrad(qkv)    whole_layers
///           dgrad(fc) wgrad(fc) dgrad(qkv) send wgrad(qkv)    otherwise
/// Applies to every backward job that sends, also in warm-up and cool-down. The order of jobs does
/// not change, so every gradient is still accumulated in microbatch order. Schedules that split the
/// backward already have weight gradients behind the message: nothing moves there.
///
/// A task in front of the message that depends on a delayed weight gradient moves with it if its
/// phase is wgrad or comm; otherwise the weight gradient stays. Operands of moved tasks live
/// longer, so memory grows with num_layers.
///
/// Counts moved weight gradients. Rounding does not change. Place: before passes that move gradient
/// reductions to where gradients are ready. Source: Megatron-LM pull request 4268
/// (overlap_p2p_wgrad_delayed_layer_number, overlap_p2p_with_transformer_layer_wgrad).
PassResult delay_wgrad(Program program, const DelayWgradOptions& options = {});

Pass delay_wgrad_pass(const PipelineOptions& options);

}  // namespace braid
