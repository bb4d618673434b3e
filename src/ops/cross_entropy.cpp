#include "ops/cross_entropy.h"

#include <array>

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

void check_cross_entropy(const OpSpec& spec) {
  const auto attributes = attributes_of<CrossEntropyAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& logits = operands.next_floating("logits", Access::kRead, 2);
  operands.require(attributes.vocabulary > 0 && attributes.vocabulary <= logits.shape[1],
                   "vocabulary must lie in [1, columns of logits]");
  operands.expect("labels", Access::kRead, DType::kI32, {logits.shape[0]});
  operands.expect("loss_scale", Access::kRead, accumulator_dtype(logits.dtype), {1});
  operands.expect("loss", Access::kWrite, accumulator_dtype(logits.dtype), {1});
  operands.expect("lse", Access::kWrite, accumulator_dtype(logits.dtype), {logits.shape[0]});
  operands.done();
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
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& stats = operands.next_floating("stats", Access::kRead, 2);
  const OperandSpec& labels = operands.next("labels", Access::kRead, 1);
  const int64_t rows = labels.shape[0];
  operands.require(labels.dtype == DType::kI32, "labels must be i32");
  operands.require(stats.dtype == accumulator_dtype(stats.dtype) &&
                       stats.shape[1] == kCrossEntropyStats && rows > 0 &&
                       stats.shape[0] % rows == 0 && stats.shape[0] > 0,
                   "stats must be accumulators [R*N,3] for N labels");
  operands.expect("loss_scale", Access::kRead, stats.dtype, {1});
  operands.expect("loss", Access::kWrite, stats.dtype, {1});
  operands.expect("lse", Access::kWrite, stats.dtype, {rows});
  operands.done();
}

void check_cross_entropy_backward(const OpSpec& spec) {
  const auto shard = attributes_of<CrossEntropyShardAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& logits = operands.next_floating("logits", Access::kRead, 2);
  check_shard(operands, shard);
  operands.expect("labels", Access::kRead, DType::kI32, {logits.shape[0]});
  operands.expect("loss_scale", Access::kRead, accumulator_dtype(logits.dtype), {1});
  operands.expect("lse", Access::kRead, accumulator_dtype(logits.dtype), {logits.shape[0]});
  operands.expect("d_logits", Access::kWrite, logits.dtype, logits.shape);
  operands.done();
}

/// The values that the backward of a loss reads.
struct LossValues {
  ValueId logits, labels, loss_scale, lse;
};

void add_backward(BackwardBuilder& builder, const Node& node, const LossValues& values,
                  const CrossEntropyShardAttributes& shard) {
  const ValueId d_logits = builder.new_grad(values.logits);
  builder.add_node(
      node, "cross_entropy_backward", to_attributes(shard),
      std::array{Operand{values.logits}, Operand{values.labels}, Operand{values.loss_scale},
                 Operand{values.lse}, Operand{d_logits, Access::kWrite}},
      Phase::kDgrad);
  builder.add_grad(node, values.logits, d_logits);
}

void cross_entropy_backward(BackwardBuilder& builder, const Node& node) {
  add_backward(builder, node,
               {.logits = node.operands[0],
                .labels = node.operands[1],
                .loss_scale = node.operands[2],
                .lse = node.operands[4]},
               {.vocabulary = attributes_of<CrossEntropyAttributes>(node.spec).vocabulary});
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
               attributes_of<CrossEntropyShardAttributes>(partial.spec));
}

template <class Attributes>
IntegerNeed tokens_of_vocabulary(const OpSpec& spec, size_t /*operand*/) {
  return {.limit = attributes_of<Attributes>(spec).vocabulary};
}

}  // namespace

const OpDefinition kCrossEntropyOp{
    .name = "cross_entropy",
    .summary = "Scaled sum of the negative log-likelihoods of the labels.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kEmbeddingAndLoss,
    .check = check_cross_entropy,
    .cost = elementwise_cost<4>,
    .backward = cross_entropy_backward,
    .split = kNeverSplit,
    .integers = tokens_of_vocabulary<CrossEntropyAttributes>,
};

const OpDefinition kCrossEntropyPartialOp{
    .name = "cross_entropy_partial",
    .summary = "Statistics of each row of logits, for ranks that hold some of the columns.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kEmbeddingAndLoss,
    .check = check_cross_entropy_partial,
    .cost = elementwise_cost<4>,
    .split = kNeverSplit,
    .part_begin = "vocabulary_begin",
    .integers = tokens_of_vocabulary<CrossEntropyShardAttributes>,
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
    .split = kNeverSplit,
    .part_begin = "vocabulary_begin",
    .integers = tokens_of_vocabulary<CrossEntropyShardAttributes>,
};

void cross_entropy(GraphBuilder& builder, ValueId logits, ValueId labels, ValueId loss_scale,
                   ValueId loss, int64_t vocabulary, std::string_view site) {
  const Value input = builder.value(logits);
  const ValueId lse = builder.add_activation(fmt::format("{}.lse", site),
                                             accumulator_dtype(input.dtype), {input.shape[0]});
  builder.add_node("cross_entropy", to_attributes(CrossEntropyAttributes{.vocabulary = vocabulary}),
                   std::array{Operand{logits}, Operand{labels}, Operand{loss_scale},
                              Operand{loss, Access::kWrite}, Operand{lse, Access::kWrite}},
                   site);
}

void sharded_cross_entropy(GraphBuilder& builder, const ShardedCrossEntropy& operands,
                           std::string_view site) {
  const Value logits = builder.value(operands.logits);
  const DType wide = accumulator_dtype(logits.dtype);
  const int64_t rows = logits.shape[0];
  const ValueId stats =
      builder.add_activation(fmt::format("{}.stats", site), wide, {rows, kCrossEntropyStats});
  builder.add_node("cross_entropy_partial", to_attributes(operands.shard),
                   std::array{Operand{operands.logits}, Operand{operands.labels},
                              Operand{stats, Access::kWrite}},
                   site);
  const ValueId all_stats = all_gather(builder, stats, operands.group, operands.num_ranks,
                                       fmt::format("{}.all_stats", site));
  const ValueId lse = builder.add_activation(fmt::format("{}.lse", site), wide, {rows});
  builder.add_node(
      "cross_entropy_merge", {},
      std::array{Operand{all_stats}, Operand{operands.labels}, Operand{operands.loss_scale},
                 Operand{operands.loss, Access::kWrite}, Operand{lse, Access::kWrite}},
      site);
}

}  // namespace braid
