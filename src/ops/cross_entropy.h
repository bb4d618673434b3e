#pragma once

#include <algorithm>
#include <optional>

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// Another loss of a training step, which keeps the log-sum-exp of logits near 0: z_loss * lse^2 of
/// each row whose label is not ignored. Source: Chowdhery et al., PaLM, 2022, section 5.
struct ZLoss {
  double z_loss = 0.0;  ///< coefficient; 0: there is none
  void fields(auto&& visit) { visit("z_loss", z_loss); }
  friend bool operator==(const ZLoss&, const ZLoss&) = default;
};

/// cross_entropy: logits [N,V], labels i32 [N], loss_scale f32 [1] -> loss f32 [1], lse f32 [N],
/// and with a ZLoss z f32 [1].
/// loss = loss_scale * sum over rows of (lse[n] - logits[n,labels[n]]). A label < 0 is ignored (its
/// row adds nothing); a label >= vocabulary is a DeviceError naming it on the CPU, and a NaN loss
/// on a GPU. Columns >= vocabulary are padding and are ignored. The host sets loss_scale to 1 /
/// (valid labels of the whole step over all microbatches and ranks), so that plain sums of losses
/// and gradients are those of the mean over the global batch. z = loss_scale * z_loss * sum of
/// lse[n]^2 over the rows that are not ignored; `loss` is without it.
struct CrossEntropyAttributes {
  int64_t vocabulary = 0;  ///< valid columns, <= V
  ZLoss z = {};
  void fields(auto&& visit) {
    visit("vocabulary", vocabulary);
    visit.optional(z);
  }
};

/// For logits whose columns are split over ranks, V of them on this one: column i belongs to token
/// vocabulary_begin + i, and is padding if that is >= vocabulary. All columns of a rank may be
/// padding.
///
/// cross_entropy_partial: logits [N,V], labels i32 [N] -> stats f32 [N,3]. The statistics of a row
/// are the largest logit (-infinity if there is none), the sum of exp(logit - largest), and the
/// label's logit (0 if another rank has its column or the label is ignored). Labels as above.
/// cross_entropy_backward: logits [N,V], labels i32 [N], loss_scale f32 [1], lse f32 [N] ->
/// d_logits [N,V] = loss_scale * ((1 + 2 z_loss lse) softmax - onehot), the gradient of loss + z; 0
/// in ignored rows and in padding columns. lse is over the columns of all ranks. With a
/// SequenceScales, loss_scale is f32 [sequences], one for each run of N / sequences rows.
struct CrossEntropyShardAttributes {
  int64_t vocabulary = 0;        ///< valid columns of all ranks
  int64_t vocabulary_begin = 0;  ///< token of this rank's first column
  void fields(auto&& visit) {
    visit("vocabulary", vocabulary);
    visit("vocabulary_begin", vocabulary_begin);
  }

  /// The number of valid columns among `columns` columns; they come first.
  int64_t valid_columns(int64_t columns) const {
    return std::clamp(vocabulary - vocabulary_begin, int64_t{0}, columns);
  }
};

struct SequenceScales {
  int64_t sequences = 1;  ///< divides the rows
  void fields(auto&& visit) { visit("sequences", sequences); }
  friend bool operator==(const SequenceScales&, const SequenceScales&) = default;
};

struct CrossEntropyBackwardAttributes {
  CrossEntropyShardAttributes shard;
  ZLoss z = {};
  SequenceScales scales = {};
  void fields(auto&& visit) {
    shard.fields(visit);
    visit.optional(z);
    visit.optional(scales);
  }
};

/// cross_entropy_merge: stats f32 [R*N,3], labels i32 [N], loss_scale f32 [1] -> loss f32 [1], lse
/// f32 [N], and with a ZLoss z f32 [1]. `stats` are those of R ranks, concatenated; the results are
/// those of cross_entropy over all their columns, up to rounding.
struct CrossEntropyMergeAttributes {
  ZLoss z = {};
  void fields(auto&& visit) { visit.optional(z); }
};

extern const OpDefinition kCrossEntropyOp;
extern const OpDefinition kCrossEntropyPartialOp;
extern const OpDefinition kCrossEntropyMergeOp;
extern const OpDefinition kCrossEntropyBackwardOp;

inline constexpr int64_t kCrossEntropyStats = 3;  ///< per row

class OperandChecker;

struct LabelledStats {
  DType dtype = DType::kF32;
  int64_t rows = 0;  ///< N, of the labels
};

/// Checks the next two operands: statistics [R*N,3] of R ranks, and labels i32 [N].
LabelledStats next_labelled_stats(OperandChecker& operands);

struct LossOperands {
  ValueId logits;  ///< [N, V of this rank]
  ValueId labels;
  ValueId loss_scale;
  ValueId loss;                   ///< kOutput
  std::optional<ValueId> z = {};  ///< kOutput; given if the attributes have a ZLoss
};

/// Writes `loss` and `z`; their gradients are 1 by definition, so this node starts the backward.
void cross_entropy(GraphBuilder& builder, const LossOperands& operands,
                   const CrossEntropyAttributes& attributes, std::string_view site);

struct ShardedCrossEntropy {
  LossOperands operands;
  CrossEntropyShardAttributes shard;
  ZLoss z = {};
  std::string_view group;  ///< the group whose ranks hold the columns
  int64_t num_ranks = 1;   ///< of the group
};

/// The same for logits whose columns are split over a group: every rank gets the loss. Ranks
/// exchange three numbers per row, and nothing in the backward. Source: Shoeybi et al.,
/// Megatron-LM, 2019, section 3.
void sharded_cross_entropy(GraphBuilder& builder, const ShardedCrossEntropy& sharded,
                           std::string_view site);

}  // namespace braid
