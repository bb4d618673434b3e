#pragma once

#include "ir/program.h"

namespace braid {

/// The program with each exchange of heads for sequence between context ranks, whose ranks have a
/// run of each half of a sequence (ContextShard::runs), cut into that of either half:
///   before: split_heads(x -> h)  all_to_all(h -> e)  swap_blocks(e -> y)
///   after:  split_heads(x[0] -> h[0])  all_to_all(h[0] -> y[0])
///           split_heads(x[1] -> h[1])  all_to_all(h[1] -> y[1])
/// and the other way round, where the calls stand in front of what reads them. Each call brings
/// what belongs together, so that nothing is left to put in order. For programs as they are built
/// (before passes): a stage graph has no parts of values.
Program cut_exchanges(const Program& program);

}  // namespace braid
