#pragma once

#include "passes/pass.h"

namespace braid {

/// Removes tasks that change nothing. They would only occupy streams and events. Programs contain
/// them because all parallel layouts are built alike and differ only in group sizes.
///  - In-place sums over groups of one rank, and copies of a range onto itself:
///      before: wgrad(x, dy -> rw g)  all_reduce(-> rw g) {group=0}  adamw(g -> rw w)
///      after:  wgrad(x, dy -> rw g)  adamw(g -> rw w)                   group 0 has one rank
///  - `identity`, and collectives from one buffer to another over groups of one rank. Their
///    readers then read the source:
///      before: identity(x -> y) {group=1}  linear(y, w -> z)
///      after:  linear(x, w -> z)
///    The task stays if removing it could change a result: if y is not a step buffer that only this
///    task writes, as a whole and before all readers; if another task writes x before the last
///    reader; or if x and y are in different kinds of memory.
/// Counts removed tasks. Rounding does not change. Place: first, to leave later passes less work.
/// Source: Paddle's list of open work on overlap (PR 57446), "no copies for identity collectives".
PassResult remove_identities(Program program);

Pass remove_identities_pass();

}  // namespace braid
