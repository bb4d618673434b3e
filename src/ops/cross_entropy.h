#pragma once

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// cross_entropy: logits [N,V], labels i32 [N], loss_scale f32 [1] -> loss f32 [1], lse f32 [N].
/// loss = loss_scale * sum over rows of (lse[n] - logits[n,labels[n]]); a label < 0 is ignored (its
/// row adds nothing); a label >= vocabulary is a DeviceError naming it on the CPU, and a NaN loss
/// on a GPU. Columns >= vocabulary are padding and take no part. The host sets loss_scale to 1 /
/// (valid labels of the whole step over all microbatches and ranks), so that plain sums of losses
/// and gradients are those of the mean over the global batch. cross_entropy_backward: logits [N,V],
/// labels i32 [N], loss_scale f32 [1], lse f32 [N] -> d_logits [N,V] = loss_scale * (softmax -
/// onehot); 0 in ignored rows and in padding columns.
struct CrossEntropyAttributes {
  int64_t vocabulary = 0;  ///< valid columns, <= V
  void fields(auto&& visit) { visit("vocabulary", vocabulary); }
};

extern const OpDefinition kCrossEntropyOp;
extern const OpDefinition kCrossEntropyBackwardOp;

/// Writes `loss` (a kOutput value); its gradient is 1 by definition, so this node starts the
/// backward.
void cross_entropy(GraphBuilder& builder, ValueId logits, ValueId labels, ValueId loss_scale,
                   ValueId loss, int64_t vocabulary, std::string_view site);

}  // namespace braid
