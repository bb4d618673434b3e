#include "ops/preference.h"

#include <array>
#include <optional>
#include <string>

#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/collectives.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_sequence_losses(const OpSpec& spec) {
  const auto attributes = attributes_of<SequenceLossesAttributes>(spec);
  OperandChecker operands(spec);
  const auto [dtype, rows] = next_labelled_stats(operands);
  operands.require(attributes.sequences > 0 && rows % attributes.sequences == 0,
                   "sequences must divide the rows");
  operands.expect("losses", Access::kWrite, dtype, {attributes.sequences});
  operands.expect("lse", Access::kWrite, dtype, {rows});
  operands.done();
}

void check_preference_loss(const OpSpec& spec) {
  const auto attributes = attributes_of<PreferenceLossAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& losses = operands.next_floating("losses", Access::kRead, 1);
  const DType wide = losses.dtype;
  operands.require(wide == accumulator_dtype(wide), "losses must be accumulators");
  operands.require(losses.shape[0] > 0 && losses.shape[0] % 2 == 0,
                   "losses must be those of whole pairs");
  operands.require(attributes.kind >= 0 && attributes.kind < kNumPreferenceKinds,
                   "there is no such kind");
  operands.require(attributes.beta > 0 && attributes.pairs > 0 && attributes.label_smoothing >= 0 &&
                       attributes.label_smoothing < 0.5,
                   "beta and pairs must be above 0, label_smoothing in [0, 0.5)");
  operands.expect("reference", Access::kRead, wide, {losses.shape[0], kReferenceColumns});
  operands.expect("loss", Access::kWrite, wide, {1});
  operands.expect("figures", Access::kWrite, wide, {kPreferenceFigures});
  operands.expect("d_losses", Access::kWrite, wide, {losses.shape[0]});
  operands.done();
}

// The gradient does not pass through the statistics: it needs only lse and a rank's own logits, so
// there is no communication.
void sequence_losses_backward(BackwardBuilder& builder, const Node& node) {
  const Node* partial = &builder.producer_of(node.operands[0]);
  if (partial->spec.op != kCrossEntropyPartialOp.name) {
    partial = &builder.producer_of(partial->operands[0]);
  }
  check(partial->spec.op == kCrossEntropyPartialOp.name, "op {} at {} reads statistics of op {}",
        node.spec.op, node.site, partial->spec.op);
  const std::optional<ValueId> d_losses = builder.grad_of(node.operands[2]);
  if (!d_losses) {
    return;
  }
  const ValueId logits = partial->operands[0];
  const ValueId d_logits = builder.new_grad(logits);
  const CrossEntropyBackwardAttributes attributes{
      .shard = attributes_of<CrossEntropyShardAttributes>(partial->spec),
      .scales = {attributes_of<SequenceLossesAttributes>(node.spec).sequences}};
  builder.add_node(node, std::string(kCrossEntropyBackwardOp.name), to_attributes(attributes),
                   std::array{Operand{logits}, Operand{node.operands[1]}, Operand{*d_losses},
                              Operand{node.operands[3]}, Operand{d_logits, Access::kWrite}},
                   Phase::kDgrad);
  builder.add_grad(node, logits, d_logits);
}

// The forward makes the gradient: it is one number for each sequence.
void preference_loss_backward(BackwardBuilder& builder, const Node& node) {
  builder.add_grad(node, node.operands[0], node.operands[4]);
}

}  // namespace

const OpDefinition kSequenceLossesOp{
    .name = "sequence_losses",
    .summary = "Negative log-likelihood of each sequence's labels, out of the statistics of ranks.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kEmbeddingAndLoss,
    .check = check_sequence_losses,
    .cost = elementwise_cost<2>,
    .backward = sequence_losses_backward,
    .split = kNeverSplit,
};

const OpDefinition kPreferenceLossOp{
    .name = "preference_loss",
    .summary = "Loss of pairs of preferred and rejected sequences, and its gradient.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kEmbeddingAndLoss,
    .check = check_preference_loss,
    .cost = elementwise_cost<20>,
    .backward = preference_loss_backward,
    .split = kNeverSplit,
    .added_by_one = "counts",
};

void preference_loss(GraphBuilder& builder, const PreferenceLoss& loss, std::string_view site) {
  const Value logits = builder.value(loss.logits);
  const DType wide = accumulator_dtype(logits.dtype);
  const int64_t rows = logits.shape[0];
  const int64_t sequences = builder.value(loss.reference).shape[0];
  const auto activation = [&](std::string_view name, const Shape& shape) {
    return builder.add_activation(fmt::format("{}.{}", site, name), wide, shape);
  };
  const ValueId own_stats = activation("stats", {rows, kCrossEntropyStats});
  builder.add_node(
      std::string(kCrossEntropyPartialOp.name), to_attributes(loss.shard),
      std::array{Operand{loss.logits}, Operand{loss.labels}, Operand{own_stats, Access::kWrite}},
      site);
  const ValueId stats = loss.num_ranks == 1
                            ? own_stats
                            : all_gather(builder, own_stats, loss.group, loss.num_ranks,
                                         fmt::format("{}.all_stats", site));
  ValueId losses = loss.sequences ? *loss.sequences : activation("sequences", {sequences});
  const ValueId lse = activation("lse", {rows});
  builder.add_node(std::string(kSequenceLossesOp.name),
                   to_attributes(SequenceLossesAttributes{sequences}),
                   std::array{Operand{stats}, Operand{loss.labels}, Operand{losses, Access::kWrite},
                              Operand{lse, Access::kWrite}},
                   site);
  for (const std::string_view group : loss.token_groups) {
    losses = all_reduce(builder, losses, group, fmt::format("{}.{}", site, group));
  }
  const ValueId d_losses = activation("d_sequences", {sequences});
  builder.add_node(
      std::string(kPreferenceLossOp.name), to_attributes(loss.attributes),
      std::array{Operand{losses}, Operand{loss.reference}, Operand{loss.loss, Access::kWrite},
                 Operand{loss.figures, Access::kWrite}, Operand{d_losses, Access::kWrite}},
      site);
}

}  // namespace braid
