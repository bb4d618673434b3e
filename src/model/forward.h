#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/dtype.h"
#include "model/context_shard.h"
#include "model/expert_shard.h"
#include "model/model_spec.h"
#include "model/stage_slice.h"
#include "model/tensor_shard.h"
#include "ops/documents.h"
#include "ops/graph.h"
#include "ops/preference.h"
#include "ops/router.h"
#include "ops/token_cache.h"

namespace braid {

enum class ForwardEnd : uint8_t {
  kLoss,  ///< ends in the value "loss" f32 [1], with ForwardOptions::z_loss also "z_loss" f32 [1];
          ///< needs the inputs "labels" i32 [N] and "loss_scale" f32 [1]; with
          ///< ForwardOptions::preference see there
  kLogits,  ///< ends in the output "logits" [N, columns of this tensor rank], which are tokens from
            ///< index * columns; columns past the vocabulary are padding
};

/// Coefficients of the losses that routers add to a token's (ops/router.h); 0: none.
struct RouterLosses {
  double balance = 0.0;           ///< over all sequences of a microbatch
  double sequence_balance = 0.0;  ///< inside each sequence
  double z = 0.0;

  friend bool operator==(const RouterLosses&, const RouterLosses&) = default;
};

/// The site of the losses inside sequences; the others are at "moe.losses".
inline constexpr std::string_view kSequenceLossesSite = "moe.sequence_losses";

/// The ZLoss of the head; that of a depth of multi-token prediction is `mtp_value` of this name.
inline constexpr std::string_view kZLossValue = "z_loss";

/// Values of a preference loss.
inline constexpr std::string_view kReferenceValue = "reference";
inline constexpr std::string_view kPreferenceValue = "preference";
inline constexpr std::string_view kSequenceLossesValue = "sequence_losses";

/// The site where experts with a capacity drop rows (ops/drop_rows.h).
inline constexpr std::string_view kDropSite = "moe.drop";

/// Inputs of a stage with documents (ops/documents.h): starts i32 [N] of the rows of this rank,
/// and, if context ranks exchange heads for sequence, those of the rows of all that do.
inline constexpr std::string_view kDocumentStarts = "document_starts";
inline constexpr std::string_view kExchangedDocumentStarts = "exchanged_document_starts";

struct ForwardOptions {
  int64_t microbatch = 1;  ///< B sequences
  int64_t sequence = 1;    ///< T tokens each, of all context ranks; N = B * T / ranks rows
  DType dtype = DType::kF32;
  ForwardEnd end = ForwardEnd::kLoss;
  TensorShard tensor;
  ContextShard context;
  ExpertShard experts;
  bool mtp = false;   ///< with kLoss: also the losses of multi-token prediction
  double z_loss = 0;  ///< ZLoss of each head (ops/cross_entropy.h), with kLoss
  /// With kLoss, which is then that of pairs of sequences (ops/preference.h); `counts` is set by
  /// build_forward. Needs the inputs "labels" and "reference" f32 [B,2], and ends in "loss" and
  /// "preference" f32 [5].
  std::optional<PreferenceLossAttributes> preference = {};
  bool sequence_losses = false;  ///< with `preference`, without a backward: another output,
                                 ///< "sequence_losses" f32 [B], of the rank's own tokens
  RouterLosses router_losses;    ///< a stage with experts then needs the input "loss_scale", too
  AttentionDocuments documents;  ///< of each sequence; none: a sequence is one document
  std::optional<TokenCache> cache = {};  ///< the rows continue sequences of earlier runs
  bool watch_experts = false;            ///< counts the rows of each expert (ops/expert_rows.h)
  bool watch_room = false;               ///< counts the rows that come to a rank (RoomTally)
  RoutingUse routing = RoutingUse::kScores;
  std::optional<StageSlice> stage;  ///< nothing: the whole model
};

/// Builds the forward graph of one microbatch through a stage, as one tensor rank runs it; autodiff
/// derives the backward of the same rank from it. The input of the stage with the embedding is the
/// value "tokens" i32 [N]; other stages begin with StageGraph::stage_input. All stages but the last
/// end with StageGraph::stage_output, [N, C] (sequence parallel: [N / ranks, C], this rank's rows).
/// Residual additions are fused with the following norm. Parameters are values with the names of
/// `model_parameters` and the shapes of their shards; a copy of a tied embedding has the name of
/// the original. The groups are "tensor", "context.inner" and "context.outer".
///
/// With several tensor ranks, x of a matrix whose rows are split goes through `identity`, and y of
/// a matrix whose columns are split through `all_reduce`; with sequence parallelism through
/// `all_gather` and `reduce_scatter` along the rows. Main grads of `ParameterShard::partial_sums`
/// are one rank's addends; nothing else remains to be reduced within the tensor group, and every
/// rank has the loss.
///
/// A context rank has its tokens of every sequence (`ContextShard`); only attention uses tokens of
/// other ranks. Its main grads and its loss are addends of those of the microbatch.
///
/// A rank with other experts than its neighbours sends the rows of its tokens to the ranks that
/// hold their experts (ops/expert_exchange.h), in the group "expert.exchange". Main grads of
/// experts are complete for the tokens of all ranks of this group.
///
/// With `documents`, blocks that mix tokens, and learned positions, need the inputs above.
///
/// With `cache`, the B * T rows are the next ones of B sequences whose earlier tokens are in
/// caches, of kind kCache. Inputs are then "cache_begins" and "cache_counts" i32 [B]
/// (ops/token_cache.h), and "document_starts" i32 [N], which gives positions: row n is at position
/// C - 1 - document_starts[n] of its sequence, C the capacity. Only for whole sequences of one
/// document on one rank.
///
/// With `mtp`, the stage with the head has the layers of multi-token prediction and their values
/// (`mtp_value`); like tokens and labels, they are of this rank's rows.
///
/// Throws ConfigError if a table of learned positions is shorter than the sequence, if the model
/// cannot be split over the tensor ranks (`check_tensor_parallel`), or the sequence over the
/// context ranks (`check_context_parallel`).
StageGraph build_forward(const ModelSpec& spec, const ForwardOptions& options);

}  // namespace braid
