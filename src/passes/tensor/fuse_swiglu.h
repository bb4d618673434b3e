#pragma once

#include "passes/pass.h"

namespace braid {

struct FuseSwigluOptions {
  bool enabled = true;
};

/// Makes a product and the SwiGLU beside it one task, whose kernel keeps what one hands to the
/// other out of memory (ops/linear_swiglu.h):
///   before: linear(x, w -> g)  swiglu(g -> y)
///   after:  linear_swiglu(x, w -> g, y)
///
///   before: linear_dgrad(dy, w -> d)  linear_wgrad(y, dy -> rw dw)  swiglu_backward(g, d -> dg)
///   after:  linear_dgrad_swiglu_backward(dy, w, g -> dg)  linear_wgrad(y, dy -> rw dw)
///
/// Of a product in pieces of rows, as passes leave it that cut products, each piece takes its rows
/// of the activation, so that none waits for other pieces:
///   before: linear(x[1], w -> g[1])  linear(x[0], w -> g[0])  swiglu(g -> y)
///   after:  linear_swiglu(x[1], w -> g[1], y[1])  linear_swiglu(x[0], w -> g[0], y[0])
/// All pieces or none: each must end where the activation may be cut (split_task.h).
///
/// Both tasks must be on one stream, of one phase, microbatch and layer, so that what is made again
/// in the backward stays there; the activation reads just what the product, or its pieces, have
/// written, which has neither a bias nor a sum that it is added to; and nothing else reads d, whose
/// buffer is then not used any more. Where the activation is in pieces, too, they pair with those
/// of the product that are alike.
///
/// The task is at the product's place or, if something between the two forbids that, at the
/// activation's: the latter only if the product is whole, and compute between them is not the first
/// to read something from another rank or from the host, which the product may hide. Nothing here
/// goes by streams or by the places of communication: the same tasks are one with overlap and
/// without it.
///
/// Counts activations. Rounding does not change. Ensures: tasks that conflict keep their order.
/// Place: behind all that splits, repeats, moves and places tasks, which know products and
/// activations as two; in front of events.
PassResult fuse_swiglu(Program program, const FuseSwigluOptions& options);

Pass fuse_swiglu_pass(const PipelineOptions& options);

}  // namespace braid
