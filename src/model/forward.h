#pragma once

#include <cstdint>
#include <optional>

#include "base/dtype.h"
#include "model/context_shard.h"
#include "model/model_spec.h"
#include "model/stage_slice.h"
#include "model/tensor_shard.h"
#include "ops/graph.h"

namespace braid {

enum class ForwardEnd : uint8_t {
  kLoss,  ///< ends in the value "loss" f32 [1]; needs the inputs "labels" i32 [N] and "loss_scale"
          ///< f32 [1]
  kLogits,  ///< ends in the output "logits" [N, columns of this tensor rank], which are tokens from
            ///< index * columns; columns past the vocabulary are padding
};

struct ForwardOptions {
  int64_t microbatch = 1;  ///< B sequences
  int64_t sequence = 1;    ///< T tokens each, of all context ranks; N = B * T / ranks rows
  DType dtype = DType::kF32;
  ForwardEnd end = ForwardEnd::kLoss;
  TensorShard tensor;
  ContextShard context;
  std::optional<StageSlice> stage;  ///< nothing: the whole model
};

/// Forward graph of one microbatch through a stage, as one tensor rank runs it; autodiff makes the
/// backward of the same rank out of it. The input of the stage with the embedding is the value
/// "tokens" i32 [N]; others begin with StageGraph::stage_input, and all but the last end with
/// StageGraph::stage_output, [N, C] (sequence parallel: [N / ranks, C], this rank's rows). Residual
/// additions are fused with the norm behind them. Parameters are values of the names of
/// `model_parameters` and the shapes of their shards; a copy of a tied embedding has the name of
/// the original. The groups are "tensor", "context.inner" and "context.outer".
///
/// Where ranks are more than one: x of a matrix whose rows are split goes through `identity`, y of
/// one whose columns are split through `all_reduce`; with sequence parallelism through `all_gather`
/// and `reduce_scatter` along the rows. Main grads of `ParameterShard::partial_sums` are one rank's
/// addends; nothing else is left to reduce within the tensor group, and every rank has the loss.
///
/// A context rank has its tokens of every sequence (`ContextShard`), and only attention sees those
/// of the others. Its main grads and its loss are addends of those of the microbatch.
///
/// Throws ConfigError if a table of learned positions is shorter than the sequence, or if the model
/// cannot be split over the tensor ranks (`check_tensor_parallel`) or the sequence over the context
/// ranks (`check_context_parallel`).
StageGraph build_forward(const ModelSpec& spec, const ForwardOptions& options);

}  // namespace braid
