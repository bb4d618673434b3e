#pragma once

#include "passes/pass.h"

namespace braid {

/// Removes tasks that change nothing: all-reduces over groups of one rank, and copies of a range
/// onto itself. They would occupy streams and events for nothing, and layouts differ only in group
/// sizes, so every layout has them.
///   before: wgrad(x, dy -> rw g)  all_reduce(-> rw g) {group=0}  adamw(g -> rw w)   group 0 has
///   one rank after:  wgrad(x, dy -> rw g)  adamw(g -> rw w)
/// Counts removed tasks. Rounding does not change. Place: first, since all later passes have less
/// to do. Source: Paddle's list of open work on overlap (PR 57446), "no copies for identity
/// collectives".
PassResult remove_identities(Program program);

}  // namespace braid
