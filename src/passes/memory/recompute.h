#pragma once

#include "ops/op.h"
#include "passes/pass.h"

namespace braid {

struct RecomputeOptions {
  Recompute policy = Recompute::kNone;
  int64_t num_layers = 0;  ///< the first layers only, by their number in the model; 0: all
};

/// Makes activations again in the backward instead of keeping them from the forward. What backward
/// tasks of a layer read and the policy does not keep is made a second time, right in front of the
/// first of them that needs it, into buffers "NAME.recomputed"; the original lives no longer than
/// the forward needs it.
///   before: gelu(h -> y) forward  linear(y, w -> z) forward  ...  wgrad(y, dz -> rw g) wgrad
///   after:  gelu(h -> y) forward  linear(y, w -> z) forward  ...
///           gelu(h -> y.recomputed) dgrad  wgrad(y.recomputed, dz -> rw g) wgrad
///
/// Policies, each with all that those before it do (OpDefinition::recompute):
///   norms      results of norms and activation functions; with tensor parallelism also the
///   gathered
///              inputs of matrices. Kept: results of matrix products and attention, and the
///              residual stream.
///   attention  the result of attention, from its input (Megatron-LM's "core_attn").
///   full       everything in a layer, from what enters it. With the residual addition fused into
///              the norm two values enter, a branch and the residual stream; their sum, which the
///              norm makes first, is kept instead of both, and the rest of the norm repeated from
///              it (ReplayRule): one value per layer.
/// A result is made again only if that keeps fewer bytes: inputs that would not be kept otherwise
/// count against it. Values that go from layer to layer are kept. A task is repeated at most once,
/// and only if something needs it. Communication in a layer is repeated like any task; messages
/// (send, recv) never are. Weights that the backward gathers anyway are read from there.
///
/// Bitwise neutral: a repeated task has the spec of the original, so the same kernel, and reads the
/// same bits: weights and all else that is read in place must not be written between the two, or
/// the task is not repeated; a replay gives the same bits by the op's promise. Ops are functions of
/// their operands; one that draws random numbers must take its state as an operand.
///
/// Counts repeated tasks, and reports bytes that are not kept any more and flops that are added.
/// Repeated tasks have phase dgrad (comm: comm) and else the label of the original. Rounding does
/// not change. Place: before all that orders tasks of forward and backward, and before offload,
/// which moves what is still kept. Source: Chen et al., Training Deep Nets with Sublinear Memory
/// Cost, 2016; Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models,
/// 2022. Throws InternalError for a forward task whose op is not known.
PassResult recompute(Program program, const RecomputeOptions& options);

Pass recompute_pass(const PipelineOptions& options);

}  // namespace braid
