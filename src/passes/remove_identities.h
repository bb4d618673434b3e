#pragma once

#include "passes/pass.h"

namespace braid {

/// Removes tasks that change nothing. They would occupy streams and events for nothing, and layouts
/// differ only in group sizes, so every layout has them.
///  - Sums in place over groups of one rank, and copies of a range onto itself:
///      before: wgrad(x, dy -> rw g)  all_reduce(-> rw g) {group=0}  adamw(g -> rw w)
///      after:  wgrad(x, dy -> rw g)  adamw(g -> rw w)                   group 0 has one rank
///  - `identity`, and collectives from one buffer to another over groups of one rank; what read
///    their results then reads what they copied:
///      before: identity(x -> y) {group=1}  linear(y, w -> z)
///      after:  linear(x, w -> z)
///    They stay where that would change a result: where y is not a step buffer that this task alone
///    writes, as a whole and before all its readers; where something writes x before the last of
///    them has read; and where x and y lie in memories of different kinds.
/// Counts removed tasks. Rounding does not change. Place: first, since all later passes have less
/// to do. Source: Paddle's list of open work on overlap (PR 57446), "no copies for identity
/// collectives".
PassResult remove_identities(Program program);

Pass remove_identities_pass();

}  // namespace braid
