#pragma once

#include "passes/pass.h"

namespace braid {

struct FuseSwigluOptions {
  bool enabled = true;
};

/// Fuses a product and the adjacent SwiGLU into one task. Its kernel does not write the value
/// passed between them to memory and read it back (ops/linear_swiglu.h):
///   before: linear(x, w -> g)  swiglu(g -> y)
///   after:  linear_swiglu(x, w -> g, y)
///
///   before: linear_dgrad(dy, w -> d)  linear_wgrad(y, dy -> rw dw)  swiglu_backward(g, d -> dg)
///   after:  linear_dgrad_swiglu_backward(dy, w, g -> dg)  linear_wgrad(y, dy -> rw dw)
///
/// If an earlier pass has cut the product into pieces of rows, each piece is fused with the same
/// rows of the activation, so that no piece waits for another:
///   before: linear(x[1], w -> g[1])  linear(x[0], w -> g[0])  swiglu(g -> y)
///   after:  linear_swiglu(x[1], w -> g[1], y[1])  linear_swiglu(x[0], w -> g[0], y[0])
/// Either all pieces are fused or none: each must end where the activation may be cut
/// (split_task.h).
///
/// Requirements: both tasks have the same stream, phase, microbatch and layer, so recomputed work
/// stays in the backward. The activation reads exactly what the product, or its pieces, have
/// written. The product has no bias and does not add to its result. No other task reads d, whose
/// buffer is unused afterwards. If the activation is also in pieces, each pairs with the product
/// piece of the same rows.
///
/// The fused task goes to the place of the product. If a task between the two forbids that, it goes
/// to the place of the activation, under three conditions: the product is whole; no compute between
/// them is the first to read data from another rank or from the host, because the product may hide
/// that transfer; and one kernel has the bits of two (fusing_keeps_bits), because what lies between
/// them may depend on overlap. The decision does not depend on streams or on where communication is
/// placed, so the same tasks are fused with and without overlap.
///
/// Counts activations. Rounding changes only in d_weights of experts. Ensures: conflicting tasks
/// keep their order.
/// Place: after all passes that split, repeat, move and place tasks, which expect products and
/// activations as separate tasks; before events.
PassResult fuse_swiglu(Program program, const FuseSwigluOptions& options);

Pass fuse_swiglu_pass(const PipelineOptions& options);

}  // namespace braid
