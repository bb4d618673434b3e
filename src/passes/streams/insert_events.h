#pragma once

#include "passes/pass.h"

namespace braid {

/// Gives the program the events that its dependencies between streams need, and no more: all that
/// it had are dropped.
///   before: a(-> x) s0  b(x -> y) s0  c(x -> z) s1  d(y, z -> w) s1
///   after:  a(-> x) s0 record=e0  b(x -> y) s0 record=e1  c(x -> z) s1 wait=e0  d(y, z -> w) s1
///   wait=e1
/// A task waits for a task that it depends on unless vector clocks say that something else already
/// orders them: its stream, or a wait for a later task. The latest is asked first, since an earlier
/// task can never know of a later one; so no single wait can be left out. Events are numbered in
/// the order in which they are recorded. Counts waits. Rounding does not change. Place: last;
/// without it a program with several streams is wrong, so it cannot be disabled. Source: transitive
/// reduction over Fidge and Mattern's vector clocks (1988).
PassResult insert_events(Program program);

Pass insert_events_pass();

}  // namespace braid
