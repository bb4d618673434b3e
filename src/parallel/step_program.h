#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "ir/program.h"
#include "model/forward.h"
#include "ops/quantize_products.h"
#include "parallel/mesh.h"
#include "parallel/optimizer_options.h"
#include "parallel/parallel_options.h"
#include "parallel/parameter_layout.h"

namespace braid {

struct TrainProgramOptions {
  int64_t microbatch = 1;             ///< sequences per microbatch on one rank
  int64_t sequence = 1;               ///< tokens per sequence, over all context ranks
  int64_t num_microbatches = 1;       ///< per rank and step
  DType dtype = DType::kF32;          ///< f32, bf16; f64 for gradient checks (without optimizer)
  std::optional<Fp8Recipe> fp8 = {};  ///< of products in layers; f32 or bf16 otherwise
  double z_loss = 0;                  ///< of heads (ForwardOptions::z_loss)
  std::optional<PreferenceLossAttributes> preference = {};  ///< in place of the usual loss
  RouterLosses router_losses = {};
  AttentionDocuments documents = {};  ///< of each sequence
  bool watch_experts = false;         ///< counts the rows of each expert
  bool watch_room = false;            ///< counts the rows of experts that come to a rank
  RoutingUse routing = RoutingUse::kScores;
  OptimizerOptions optimizer;
  /// False: the step ends with the reduced gradients and does not change the weights. Main grads
  /// are then persistent so that the host can read them.
  bool update_weights = true;
  /// True: only the jobs of the first microbatch, to compare ranks. Ranks of one stage have equal
  /// jobs, so their steps differ only if their outlines do. An outline cannot run.
  bool outline = false;
  ParallelOptions parallel;
};

/// Builds the training step of `rank`: the jobs of its schedule (forward and backward of all
/// microbatches through its virtual stages), gradient reduction, clipping, optimizer. Compute and
/// most communication run on one stream in the simplest order; passes add overlap. `layout` is
/// `make_rank_layout(model, mesh, rank, options.parallel)`.
///
/// The host writes these buffers before a step (kIo, persistent): "tokens" i32 [M, rows] if the
/// rank has the embedding; "labels" i32 [M, rows] if it has the head; with documents
/// "document_starts" i32 [M, rows] and "exchanged_document_starts" i32 [M, rows of inner ranks] as
/// its stages need them (model/forward.h); "loss_scale" f32 [1] if it
/// has the head, or experts whose routers have losses, but with `preference` not for the head,
/// which has "reference" f32 [M, 2 B]; "optimizer_scalars" f32 [3], or [4] with bf16 moments (see
/// ops/optimizer.h). With multi-token prediction of D depths (model/mtp.h), a rank with the head
/// has "mtp_tokens" and "mtp_labels" i32 [D, M, rows] and "mtp_loss_scales" f32 [D], too. With
/// RoutingUse::kGiven, a rank with experts has "routing" i32 [routers, M, rows of the router *
/// experts per token], whose routers runtime/rank_routing.h tells apart. After the step the host
/// reads "losses" f32 [M], or [1 + D, M] (summed over all ranks; the sum of the first M is the loss
/// of the step, and those behind them are the losses of each depth, times mtp_loss_weight / D; with
/// `z_loss` there are as many rows again, for z of the model's head and of each depth, which the
/// gradient includes; with `preference` f32 [6, M], where the figures of microbatch m
/// (ops/preference.h) are elements [M + 5 m, M + 5 m + 5)), "grad_norm" f32 [1] and "grad_scale"
/// f32 [1] (0: the step was skipped). They are the same on every rank. Two more are those of the
/// rank alone, and plan/tallies.h says what is where in them: "tallies" i64 with Fp8Recipe::watch,
/// `watch_experts` or `watch_room`, and "router_losses" f32 [outputs, M, 2] with router losses,
/// which are sums over microbatches and ranks like the loss of the step. With RoutingUse::kRecorded
/// "routing" is a result, too.
Program build_train_program(const ModelSpec& model, const ParameterLayout& layout, const Mesh& mesh,
                            int rank, const TrainProgramOptions& options);

struct EvalProgramOptions {
  int64_t microbatch = 1;
  int64_t sequence = 1;
  DType dtype = DType::kF32;
  std::optional<Fp8Recipe> fp8 = {};  ///< that of the training step
  ForwardEnd end = ForwardEnd::kLoss;
  /// With kLoss: as in TrainProgramOptions. There are then "<prefix>.reference", and the results
  /// "<prefix>.preference" and "<prefix>.sequence_losses".
  std::optional<PreferenceLossAttributes> preference = {};
  AttentionDocuments documents = {};  ///< those of the training step
  /// With kLogits: as in ForwardOptions. Caches are persistent buffers without the prefix, so that
  /// programs of one rank share them.
  std::optional<TokenCache> cache = {};
  std::string prefix = "eval";  ///< the host's buffers are "<prefix>.tokens", "<prefix>.labels",
                                ///< "<prefix>.loss_scale" and "<prefix>.loss" f32 [1], or
                                ///< "<prefix>.logits", and the inputs of a cache
  ParallelOptions parallel;
};

/// Builds the forward of one microbatch through the stages, with the weights of the training
/// program. Ranks with the head compute the loss or the logits of their own tokens.
Program build_eval_program(const ModelSpec& model, const ParameterLayout& layout, const Mesh& mesh,
                           int rank, const EvalProgramOptions& options);

}  // namespace braid
