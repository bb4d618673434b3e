#pragma once

#include "passes/pass.h"

namespace braid {

/// Cuts each exchange of heads for sequence between context ranks, whose ranks have a run of each
/// half of a sequence (ContextShard::runs), into that of either half:
///   before: split_heads(x -> h)  all_to_all(h -> e)  swap_blocks(e -> y)
///   after:  split_heads(x[0] -> h[0])  all_to_all(h[0] -> y[0])
///           split_heads(x[1] -> h[1])  all_to_all(h[1] -> y[1])
/// and the other way round, where the calls stand in front of what reads them. Each call brings
/// what belongs together, so that nothing is left to put in order. A stage graph, which has no
/// parts of values, cannot say so. Counts exchanges. Rounding does not change. Place: in front of
/// all others, as it looks for three tasks in a row.
PassResult cut_exchanges(Program program);

Pass cut_exchanges_pass();

}  // namespace braid
