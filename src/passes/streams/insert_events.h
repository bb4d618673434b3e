#pragma once

#include "passes/pass.h"

namespace braid {

/// Adds the events that dependencies between streams need, and no others. Existing events are
/// dropped.
///   before: a(-> x) s0  b(x -> y) s0  c(x -> z) s1  d(y, z -> w) s1
///   after:  a(-> x) s0 record=e0  b(x -> y) s0 record=e1  c(x -> z) s1 wait=e0
///           d(y, z -> w) s1 wait=e1
/// A task waits for a task that it depends on unless vector clocks show that the two are already
/// ordered: by their stream, or by a wait for a later task. The latest predecessor is checked
/// first, because an earlier task never knows of a later one; so no single wait can be left out.
/// Events are numbered in the order in which they are recorded. Counts waits. Rounding does not
/// change. Place: last. It cannot be disabled, because a program with several streams is wrong
/// without it. Source: transitive reduction over Fidge and Mattern's vector clocks (1988).
PassResult insert_events(Program program);

Pass insert_events_pass();

}  // namespace braid
