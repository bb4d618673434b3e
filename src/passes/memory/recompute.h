#pragma once

#include "ops/op.h"
#include "passes/pass.h"

namespace braid {

struct RecomputeOptions {
  Recompute policy = Recompute::kNone;
  int64_t num_layers = 0;  ///< recomputes the first layers, by number in the model; 0: all
};

/// Recomputes activations in the backward instead of keeping them from the forward. A value that
/// backward tasks of a layer read and that the policy does not keep is made again right before its
/// first reader, into a buffer "NAME.recomputed". The original lives only until its last use in the
/// forward.
///   before: gelu(h -> y) forward  linear(y, w -> z) forward  ...  wgrad(y, dz -> rw g) wgrad
///   after:  gelu(h -> y) forward  linear(y, w -> z) forward  ...
///           gelu(h -> y.recomputed) dgrad  wgrad(y.recomputed, dz -> rw g) wgrad
///
/// Policies; each includes the ones before it (OpDefinition::recompute):
///   norms      results of norms and activation functions; with tensor parallelism also the
///              gathered inputs of matrices. Kept: results of matrix products and attention, and
///              the residual stream.
///   attention  the result of attention, from its input (Megatron-LM's "core_attn").
///   compute    everything in a layer that does not communicate: rows that came from other ranks
///   and
///              sums over ranks are kept, as torchtitan's selective checkpointing of ops does.
///   full       everything in a layer, from the layer's inputs. With the residual addition fused
///              into the norm a layer has two inputs, a branch and the residual stream. Their sum,
///              which the norm makes first, is kept instead of both, and the rest of the norm is
///              repeated from it (ReplayRule): one value per layer.
/// A result is recomputed only if that keeps fewer bytes: inputs that would not be kept otherwise
/// count against it, or the inputs of the tasks that make them, if those are fewer bytes. Values
/// that pass from layer to layer are kept. A task is repeated at most once, and only if something
/// needs it. Communication in a layer is repeated like any task; messages (send, recv) never are.
/// Weights that the backward gathers anyway are read from there.
///
/// Bits do not change. A repeated task has the spec of the original, so it runs the same kernel,
/// and it reads the same bits. If weights or other data that it reads in place are written between
/// the two, the task is not repeated. A replay gives the same bits by the op's promise. Ops are
/// functions of their operands; an op that draws random numbers must take its state as an operand.
///
/// Counts repeated tasks, and reports the bytes that are no longer kept and the flops that are
/// added. A repeated task has phase dgrad (comm stays comm) and otherwise the label of the
/// original. Rounding does not change. Place: before passes that order tasks of forward and
/// backward, and before offload, which moves the values that are still kept. Source: Chen et al.,
/// Training Deep Nets with Sublinear Memory Cost, 2016; Korthikanti et al., Reducing Activation
/// Recomputation in Large Transformer Models, 2022. Throws InternalError for a forward task whose
/// op is not known.
PassResult recompute(Program program, const RecomputeOptions& options);

Pass recompute_pass(const PipelineOptions& options);

}  // namespace braid
