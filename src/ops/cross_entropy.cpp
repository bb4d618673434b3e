#include "ops/cross_entropy.h"

#include <array>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/collectives.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_shard(const OperandChecker& operands, const CrossEntropyShardAttributes& shard) {
  operands.require(shard.vocabulary > 0 && shard.vocabulary_begin >= 0,
                   "vocabulary must be at least 1, vocabulary_begin at least 0");
}

void check_z_loss(OperandChecker& operands, const ZLoss& z) {
  operands.require(z.z_loss >= 0, "z_loss must be at least 0");
}

/// The results of a loss; `wide` is their type.
void expect_losses(OperandChecker& operands, DType wide, int64_t rows, const ZLoss& z) {
  operands.expect("loss", Access::kWrite, wide, {1});
  operands.expect("lse", Access::kWrite, wide, {rows});
  check_z_loss(operands, z);
  if (z.z_loss > 0) {
    operands.expect("z", Access::kWrite, wide, {1});
  }
  operands.done();
}

void check_cross_entropy(const OpSpec& spec) {
  const auto attributes = attributes_of<CrossEntropyAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& logits = operands.next_floating("logits", Access::kRead, 2);
  operands.require(attributes.vocabulary > 0 && attributes.vocabulary <= logits.shape[1],
                   "vocabulary must lie in [1, columns of logits]");
  operands.expect("labels", Access::kRead, DType::kI32, {logits.shape[0]});
  operands.expect("loss_scale", Access::kRead, accumulator_dtype(logits.dtype), {1});
  expect_losses(operands, accumulator_dtype(logits.dtype), logits.shape[0], attributes.z);
}

void check_cross_entropy_partial(const OpSpec& spec) {
  const auto shard = attributes_of<CrossEntropyShardAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& logits = operands.next_floating("logits", Access::kRead, 2);
  check_shard(operands, shard);
  operands.expect("labels", Access::kRead, DType::kI32, {logits.shape[0]});
  operands.expect("stats", Access::kWrite, accumulator_dtype(logits.dtype),
                  {logits.shape[0], kCrossEntropyStats});
  operands.done();
}

void check_cross_entropy_merge(const OpSpec& spec) {
  const auto attributes = attributes_of<CrossEntropyMergeAttributes>(spec);
  OperandChecker operands(spec);
  const auto [dtype, rows] = next_labelled_stats(operands);
  operands.expect("loss_scale", Access::kRead, dtype, {1});
  expect_losses(operands, dtype, rows, attributes.z);
}

void check_cross_entropy_backward(const OpSpec& spec) {
  const auto attributes = attributes_of<CrossEntropyBackwardAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& logits = operands.next_floating("logits", Access::kRead, 2);
  check_shard(operands, attributes.shard);
  check_z_loss(operands, attributes.z);
  operands.expect("labels", Access::kRead, DType::kI32, {logits.shape[0]});
  const int64_t sequences = attributes.scales.sequences;
  operands.require(sequences > 0 && logits.shape[0] % sequences == 0,
                   "sequences must divide the rows");
  operands.expect("loss_scale", Access::kRead, accumulator_dtype(logits.dtype), {sequences});
  operands.expect("lse", Access::kRead, accumulator_dtype(logits.dtype), {logits.shape[0]});
  operands.expect("d_logits", Access::kWrite, logits.dtype, logits.shape);
  operands.done();
}

/// The values that the backward of a loss reads.
struct LossValues {
  ValueId logits, labels, loss_scale, lse;
};

void add_backward(BackwardBuilder& builder, const Node& node, const LossValues& values,
                  const CrossEntropyBackwardAttributes& attributes) {
  const ValueId d_logits = builder.new_grad(values.logits);
  builder.add_node(
      node, "cross_entropy_backward", to_attributes(attributes),
      std::array{Operand{values.logits}, Operand{values.labels}, Operand{values.loss_scale},
                 Operand{values.lse}, Operand{d_logits, Access::kWrite}},
      Phase::kDgrad);
  builder.add_grad(node, values.logits, d_logits);
}

void cross_entropy_backward(BackwardBuilder& builder, const Node& node) {
  const auto attributes = attributes_of<CrossEntropyAttributes>(node.spec);
  add_backward(builder, node,
               {.logits = node.operands[0],
                .labels = node.operands[1],
                .loss_scale = node.operands[2],
                .lse = node.operands[4]},
               {.shard = {.vocabulary = attributes.vocabulary}, .z = attributes.z});
}

// The gradient does not pass through the statistics: it needs only lse and a rank's own logits, so
// there is no communication.
void cross_entropy_merge_backward(BackwardBuilder& builder, const Node& node) {
  const Node& gather = builder.producer_of(node.operands[0]);
  const Node& partial = builder.producer_of(gather.operands[0]);
  check(partial.spec.op == "cross_entropy_partial", "op {} at {} reads statistics of op {}",
        node.spec.op, node.site, partial.spec.op);
  add_backward(builder, node,
               {.logits = partial.operands[0],
                .labels = partial.operands[1],
                .loss_scale = node.operands[2],
                .lse = node.operands[4]},
               {.shard = attributes_of<CrossEntropyShardAttributes>(partial.spec),
                .z = attributes_of<CrossEntropyMergeAttributes>(node.spec).z});
}

IntegerNeed tokens_of_vocabulary(const OpSpec& spec, size_t /*operand*/) {
  return {.limit = std::get<int64_t>(*spec.find_attribute("vocabulary"))};
}

/// Appends the results that the host reads.
std::vector<Operand> with_losses(std::vector<Operand> inputs, const LossOperands& operands,
                                 ValueId lse, const ZLoss& z) {
  check(operands.z.has_value() == (z.z_loss > 0), "z_loss = {} {} a value for it", z.z_loss,
        operands.z ? "with" : "without");
  inputs.push_back({operands.loss, Access::kWrite});
  inputs.push_back({lse, Access::kWrite});
  if (operands.z) {
    inputs.push_back({*operands.z, Access::kWrite});
  }
  return inputs;
}

}  // namespace

LabelledStats next_labelled_stats(OperandChecker& operands) {
  const OperandSpec& stats = operands.next_floating("stats", Access::kRead, 2);
  const OperandSpec& labels = operands.next("labels", Access::kRead, 1);
  const int64_t rows = labels.shape[0];
  operands.require(labels.dtype == DType::kI32, "labels must be i32");
  operands.require(stats.dtype == accumulator_dtype(stats.dtype) &&
                       stats.shape[1] == kCrossEntropyStats && rows > 0 &&
                       stats.shape[0] % rows == 0 && stats.shape[0] > 0,
                   "stats must be accumulators [R*N,3] for N labels");
  return {stats.dtype, rows};
}

const OpDefinition kCrossEntropyOp{
    .name = "cross_entropy",
    .summary = "Scaled sum of the negative log-likelihoods of the labels.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kEmbeddingAndLoss,
    .check = check_cross_entropy,
    .cost = elementwise_cost<4>,
    .kernel_rate = {.part = 0.90},
    .backward = cross_entropy_backward,
    .split = kNeverSplit,
    .integers = tokens_of_vocabulary,
};

const OpDefinition kCrossEntropyPartialOp{
    .name = "cross_entropy_partial",
    .summary = "Statistics of each row of logits, for ranks that hold some of the columns.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kEmbeddingAndLoss,
    .check = check_cross_entropy_partial,
    .cost = elementwise_cost<4>,
    .kernel_rate = {.part = 0.50},
    .split = kNeverSplit,
    .part_begin = "vocabulary_begin",
    .integers = tokens_of_vocabulary,
};

const OpDefinition kCrossEntropyMergeOp{
    .name = "cross_entropy_merge",
    .summary = "Loss and log-sum-exp out of the statistics of all ranks.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kEmbeddingAndLoss,
    .check = check_cross_entropy_merge,
    .cost = elementwise_cost<2>,
    .backward = cross_entropy_merge_backward,
    .split = kNeverSplit,
};

const OpDefinition kCrossEntropyBackwardOp{
    .name = "cross_entropy_backward",
    .summary = "Gradient of the loss with respect to the logits.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kEmbeddingAndLoss,
    .check = check_cross_entropy_backward,
    .cost = elementwise_cost<4>,
    .kernel_rate = {.part = 0.95},
    .split = kNeverSplit,
    .part_begin = "vocabulary_begin",
    .integers = tokens_of_vocabulary,
};

void cross_entropy(GraphBuilder& builder, const LossOperands& operands,
                   const CrossEntropyAttributes& attributes, std::string_view site) {
  const Value logits = builder.value(operands.logits);
  const ValueId lse = builder.add_activation(fmt::format("{}.lse", site),
                                             accumulator_dtype(logits.dtype), {logits.shape[0]});
  builder.add_node("cross_entropy", to_attributes(attributes),
                   with_losses({{operands.logits}, {operands.labels}, {operands.loss_scale}},
                               operands, lse, attributes.z),
                   site);
}

void sharded_cross_entropy(GraphBuilder& builder, const ShardedCrossEntropy& sharded,
                           std::string_view site) {
  const LossOperands& operands = sharded.operands;
  const Value logits = builder.value(operands.logits);
  const DType wide = accumulator_dtype(logits.dtype);
  const int64_t rows = logits.shape[0];
  const ValueId stats =
      builder.add_activation(fmt::format("{}.stats", site), wide, {rows, kCrossEntropyStats});
  builder.add_node("cross_entropy_partial", to_attributes(sharded.shard),
                   std::array{Operand{operands.logits}, Operand{operands.labels},
                              Operand{stats, Access::kWrite}},
                   site);
  const ValueId all_stats = all_gather(builder, stats, sharded.group, sharded.num_ranks,
                                       fmt::format("{}.all_stats", site));
  const ValueId lse = builder.add_activation(fmt::format("{}.lse", site), wide, {rows});
  builder.add_node("cross_entropy_merge", to_attributes(CrossEntropyMergeAttributes{sharded.z}),
                   with_losses({{all_stats}, {operands.labels}, {operands.loss_scale}}, operands,
                               lse, sharded.z),
                   site);
}

}  // namespace braid
