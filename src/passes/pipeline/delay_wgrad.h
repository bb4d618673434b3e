#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct DelayWgradOptions {
  /// Layers of a backward job whose weight gradients wait, counted from its end; more than there
  /// are: all.
  int64_t num_layers = 1;
  /// Also those of the feed-forward; false: only those of attention.
  bool whole_layers = true;
};

/// Moves weight gradients of the last layers of a backward job behind the message in which its
/// result leaves, so that they hide the message, and so that it leaves earlier.
///   before: dgrad(fc) wgrad(fc) dgrad(qkv) wgrad(qkv) send    fc, qkv of the job's last layer
///   after:  dgrad(fc) dgrad(qkv) send wgrad(fc) wgrad(qkv)    whole_layers
///           dgrad(fc) wgrad(fc) dgrad(qkv) send wgrad(qkv)    otherwise
/// In every backward job that sends: also in warm-up and cool-down. A job keeps its place among the
/// others, so every gradient is added up in the order of microbatches as before. Jobs of schedules
/// that split the backward have their weight gradients behind the message already: nothing moves.
/// What depends on a weight gradient and stands in front of the message moves along if it is of
/// phase wgrad or comm; otherwise the weight gradient stays. Operands of what moves live longer:
/// memory grows with num_layers.
/// Counts moved weight gradients. Rounding does not change. Place: in front of what moves
/// reductions of gradients to where these are ready. Source: Megatron-LM pull request 4268
/// (overlap_p2p_wgrad_delayed_layer_number, overlap_p2p_with_transformer_layer_wgrad).
PassResult delay_wgrad(Program program, const DelayWgradOptions& options = {});

Pass delay_wgrad_pass(const PipelineOptions& options);

}  // namespace braid
