#pragma once

#include "ops/graph.h"

namespace braid {

/// Makes FP8 copies by columns in the backward, of values that a backward node reads in any case.
/// The backward then keeps such a value alone, not its copy by columns too:
///
///   before: attention(qkv -> y, lse)  quantize(y -> y8, y8t)  scaled_linear(y8, ...)
///           ... scaled_linear_wgrad(y8t, ...)  attention_backward(qkv, y, lse, ...)
///   after:  attention(qkv -> y, lse)  quantize(y -> y8)  scaled_linear(y8, ...)
///           ... quantize(y -> y8t)  scaled_linear_wgrad(y8t, ...)  attention_backward(...)
///
/// The new node is in front of the first reader of the columns, and is part of dgrad: a weight
/// gradient that waits keeps one byte per element, not two. It reads the value a second time. With
/// one scale for the whole value, both nodes would also look for its largest magnitude, so these
/// copies stay together. Requires: the graph is differentiated. Changes no bit.
void delay_columns(StageGraph& graph);

}  // namespace braid
