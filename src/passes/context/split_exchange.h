#pragma once

#include "passes/pass.h"

namespace braid {

struct SplitExchangeOptions {
  /// False: the pass leaves the program alone.
  bool enabled = true;
};

/// Gives the exchanges of heads for sequence of a forward, which come in halves (cut_exchanges.h),
/// something to run beside. The products around the attention are cut into halves of the rows, and
/// the attention into halves of the queries, of which the first needs no keys of the second half,
/// since the mask is causal. Calls that are hidden are marked *:
///   before: linear rope  split_heads[0] all_to_all[0] split_heads[1] all_to_all[1]  attention
///           all_to_all_back[0] all_to_all_back[1] split_heads_back[0] split_heads_back[1]  linear
///   after:  linear[0] rope[0] split_heads[0] all_to_all[0]*
///           linear[1] rope[1] split_heads[1] all_to_all[1]*
///           attention[0] all_to_all_back[0]*  attention[1] all_to_all_back[1]*
///           split_heads_back[0] linear[0]  split_heads_back[1] linear[1]
/// attention[0] is an `attention` of half a sequence; attention[1] an `attention_step`, whose sums
/// are rounded behind it. For microbatches of one sequence. With a cost model, unless halves of the
/// products take longer than the calls that they hide.
///
/// Counts attentions that are cut. May change rounding: a product, or an attention, of half the
/// rows may be another kernel of a library. Goes by prices that are the same on all ranks. Place:
/// behind recompute and offload, which know activations as wholes; assign_streams takes the calls
/// to a stream of their own. Source of the exchange: Jacobs et al., DeepSpeed Ulysses, 2023.
PassResult split_exchange(Program program, const SplitExchangeOptions& options,
                          const PassContext& context);

Pass split_exchange_pass(const PipelineOptions& options);

}  // namespace braid
