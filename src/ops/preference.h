#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ops/cross_entropy.h"
#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// sequence_losses: stats [R*N,3], labels i32 [N] -> losses [B], lse [N], accumulators all. `stats`
/// are those of cross_entropy_partial of R ranks, concatenated. The rows are B runs of N / B, one
/// for each sequence; losses[b] is the sum of lse[n] - logits[n,labels[n]] over the rows of
/// sequence b whose label is not ignored: minus the log-probability of its labels, of the tokens
/// that this rank has.
struct SequenceLossesAttributes {
  int64_t sequences = 1;  ///< B
  void fields(auto&& visit) { visit("sequences", sequences); }
};

enum class PreferenceKind : int64_t {
  kDpo,    ///< -log sigmoid(z), TRL's "sigmoid": Rafailov et al., 2023, equation 7
  kHinge,  ///< max(0, 1 - z): Zhao et al., SLiC-HF, 2023, with the margin of DPO
  kIpo,    ///< (z / beta - 1 / (2 beta))^2: Azar et al., 2023, equation 17
};
inline constexpr int64_t kNumPreferenceKinds = 3;

/// preference_loss: losses [B], reference [B,2] -> loss [1], figures [5], d_losses [B],
/// accumulators all. Sequence 2p is the preferred answer of pair p, and 2p + 1 the rejected one;
/// reference[b] is the log-probability of the sequence in the reference model, and a weight w. With
/// r = beta * w * (-losses - reference), the reward of a sequence, and z = r[2p] - r[2p+1],
///
///   loss     sum over pairs of the loss of z, divided by `pairs`
///   figures  sums over pairs, divided by `pairs`, of r[2p], r[2p+1], (z > 0), and of the
///            log-probabilities -w * losses[2p] and -w * losses[2p+1]
///   d_losses gradient of loss with respect to losses
///
/// With label_smoothing e, the loss of kDpo is -(1 - e) log sigmoid(z) - e log sigmoid(-z): cDPO,
/// as in TRL. Ranks that share the sequences all have the sums over their tokens, and the same
/// gradients; one of them has `counts`, and the others write 0 to loss and figures.
struct PreferenceLossAttributes {
  int64_t kind = 0;  ///< a PreferenceKind
  double beta = 0.1;
  double label_smoothing = 0;
  int64_t pairs = 1;  ///< of the step, over all microbatches and ranks
  bool counts = true;
  void fields(auto&& visit) {
    visit("kind", kind);
    visit("beta", beta);
    visit("label_smoothing", label_smoothing);
    visit("pairs", pairs);
    visit("counts", counts);
  }
  PreferenceKind preference_kind() const { return static_cast<PreferenceKind>(kind); }
  friend bool operator==(const PreferenceLossAttributes&,
                         const PreferenceLossAttributes&) = default;
};

inline constexpr int64_t kPreferenceFigures = 5;
inline constexpr int64_t kReferenceColumns = 2;

extern const OpDefinition kSequenceLossesOp;
extern const OpDefinition kPreferenceLossOp;

/// A preference loss on logits whose columns may be split over ranks.
struct PreferenceLoss {
  ValueId logits;  ///< [N, V of this rank]
  ValueId labels;
  ValueId reference;                      ///< [B,2]
  ValueId loss;                           ///< kOutput
  ValueId figures;                        ///< kOutput
  std::optional<ValueId> sequences = {};  ///< kOutput [B]: results of sequence_losses, if given;
                                          ///< not for a graph with a backward
  CrossEntropyShardAttributes shard;
  std::string_view group;                           ///< the group whose ranks hold the columns
  int64_t num_ranks = 1;                            ///< of the group
  std::vector<std::string_view> token_groups = {};  ///< whose ranks share the tokens of sequences
  PreferenceLossAttributes attributes = {};
};

/// Writes `loss` and `figures`; the gradient of the loss is 1 by definition, so this node starts
/// the backward. Ranks that hold columns exchange three numbers per row, ranks that share sequences
/// one per sequence; nothing in the backward.
void preference_loss(GraphBuilder& builder, const PreferenceLoss& loss, std::string_view site);

}  // namespace braid
