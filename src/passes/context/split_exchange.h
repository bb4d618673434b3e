#pragma once

#include "passes/pass.h"

namespace braid {

struct SplitExchangeOptions {
  /// False: the pass does nothing.
  bool enabled = true;
};

/// Hides the exchanges of heads for sequence in a forward, which cut_exchanges.h has split into
/// halves. Cuts the products around the attention into halves of the rows, and the attention into
/// halves of the queries. Because the mask is causal, the first half of the queries needs no keys
/// of the second half. Hidden calls are marked *:
///   before: linear rope  split_heads[0] all_to_all[0] split_heads[1] all_to_all[1]  attention
///           all_to_all_back[0] all_to_all_back[1] split_heads_back[0] split_heads_back[1]  linear
///   after:  linear[0] rope[0] split_heads[0] all_to_all[0]*
///           linear[1] rope[1] split_heads[1] all_to_all[1]*
///           attention[0] all_to_all_back[0]*  attention[1] all_to_all_back[1]*
///           split_heads_back[0] linear[0]  split_heads_back[1] linear[1]
/// attention[0] is an `attention` of half a sequence. attention[1] is an `attention_step`, whose
/// sums are rounded after it. Requires microbatches of one sequence that is one document. With a
/// cost model, nothing is cut if halving the products costs more time than the calls that it hides.
///
/// Counts cut attentions. May change rounding: a library may use a different kernel for a product
/// or an attention with half the rows. Uses prices that are the same on all ranks. Place: after
/// recompute and offload, which need whole activations; assign_streams moves the calls to a stream
/// of their own. Source of the exchange: Jacobs et al., DeepSpeed Ulysses, 2023.
PassResult split_exchange(Program program, const SplitExchangeOptions& options,
                          const PassContext& context);

Pass split_exchange_pass(const PipelineOptions& options);

}  // namespace braid
