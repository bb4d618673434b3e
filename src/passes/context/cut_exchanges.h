#pragma once

#include "passes/pass.h"

namespace braid {

/// Splits each exchange of heads for sequence between context ranks into two exchanges, one for
/// each half of the sequence. Requires ranks that hold a run of each half (ContextShard::runs):
///   before: split_heads(x -> h)  all_to_all(h -> e)  swap_blocks(e -> y)
///   after:  split_heads(x[0] -> h[0])  all_to_all(h[0] -> y[0])
///           split_heads(x[1] -> h[1])  all_to_all(h[1] -> y[1])
/// The exchange in the other direction is split likewise, with the calls before the tasks that read
/// their results. Each call moves one half, so no swap_blocks is needed. A stage graph cannot
/// express this because it has no parts of values. Counts exchanges. Rounding does not change.
/// Place: first, because it looks for three tasks in a row.
PassResult cut_exchanges(Program program);

Pass cut_exchanges_pass();

}  // namespace braid
