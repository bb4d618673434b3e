#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "ir/program.h"
#include "model/forward.h"
#include "parallel/mesh.h"
#include "parallel/parallel_options.h"
#include "parallel/parameter_layout.h"

namespace braid {

struct OptimizerOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double max_grad_norm = 1.0;  ///< 0: no clipping
};

struct TrainProgramOptions {
  int64_t microbatch = 1;        ///< sequences per microbatch of one rank
  int64_t sequence = 1;          ///< tokens each, of all context ranks
  int64_t num_microbatches = 1;  ///< of one rank per step
  DType dtype = DType::kF32;     ///< f32, bf16; f64 for checks of gradients (no optimizer then)
  OptimizerOptions optimizer;
  /// False: the step ends with the reduced gradients, and the weights stay. Main grads are then
  /// persistent, for the host to read.
  bool update_weights = true;
  ParallelOptions parallel;
};

/// The training step of `rank`: the jobs of its schedule (all microbatches forward and backward
/// through its virtual stages), gradient reduction, clipping, AdamW. Compute and most communication
/// are on one stream and in the plainest order; passes do the rest. `layout` is
/// `make_rank_layout(model, mesh, rank, options.parallel)`.
///
/// Buffers that the host writes before a step (kIo, persistent): where the rank has the embedding,
/// "tokens" i32 [M, rows]; where it has the head, "labels" i32 [M, rows] and "loss_scale" f32 [1];
/// "optimizer_scalars" f32 [3] (see ops/optimizer.h). After it the host reads "losses" f32 [M]
/// (summed over all ranks: their sum is the loss of the step), "grad_norm" f32 [1] and "grad_scale"
/// f32 [1] (0: the step was skipped), the same on every rank.
Program build_train_program(const ModelSpec& model, const ParameterLayout& layout, const Mesh& mesh,
                            int rank, const TrainProgramOptions& options);

struct EvalProgramOptions {
  int64_t microbatch = 1;
  int64_t sequence = 1;
  DType dtype = DType::kF32;
  ForwardEnd end = ForwardEnd::kLoss;
  std::string prefix = "eval";  ///< the host's buffers are "<prefix>.tokens", "<prefix>.labels",
                                ///< "<prefix>.loss_scale" and
                                ///< "<prefix>.loss" f32 [1], or "<prefix>.logits"
  ParallelOptions parallel;
};

/// Forward of one microbatch through the stages, with the weights of the training program. The loss
/// or the logits are those of this rank's tokens, on ranks with the head.
Program build_eval_program(const ModelSpec& model, const ParameterLayout& layout, const Mesh& mesh,
                           int rank, const EvalProgramOptions& options);

}  // namespace braid
