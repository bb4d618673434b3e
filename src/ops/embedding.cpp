#include "ops/embedding.h"

#include <array>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_embedding(const OpSpec& spec) {
  const auto attributes = attributes_of<EmbeddingAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& tokens = operands.next("tokens", Access::kRead, 1);
  const OperandSpec& table = operands.next("table", Access::kRead, 2);
  operands.require(tokens.dtype == DType::kI32, "tokens must be i32");
  operands.require(attributes.sequence > 0 && tokens.shape[0] % attributes.sequence == 0,
                   "the number of tokens must be a multiple of sequence");
  if (attributes.has_positions) {
    const OperandSpec& positions = operands.next("positions", Access::kRead, 2);
    operands.require(positions.dtype == table.dtype && positions.shape[1] == table.shape[1] &&
                         positions.shape[0] >= attributes.sequence,
                     "positions must be [at least sequence, C] of the table's dtype");
  }
  operands.expect("out", Access::kWrite, table.dtype, {tokens.shape[0], table.shape[1]});
  operands.done();
}

// The table is not read as a whole: one row per token.
OpCost embedding_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  const OperandSpec& table = spec.operands[1];
  cost.bytes_read += cost.bytes_written - static_cast<double>(table.shape.num_elems()) *
                                              static_cast<double>(dtype_bytes(table.dtype));
  return cost;
}

void embedding_backward(BackwardBuilder& builder, const Node& node) {
  const auto attributes = attributes_of<EmbeddingAttributes>(node.spec);
  const std::optional<ValueId> d_out = builder.grad_of(node.operands.back());
  if (!d_out) {
    return;
  }
  const EmbeddingWgradAttributes wgrad{.sequence = attributes.sequence, .accumulate = true};
  if (attributes.has_positions) {
    const ValueId d_positions = builder.main_grad(node.operands[2]);
    builder.add_node(node, "position_embedding_wgrad", to_attributes(wgrad),
                     std::array{Operand{*d_out}, Operand{d_positions, Access::kReadWrite}},
                     Phase::kWgrad);
  }
  const ValueId d_table = builder.main_grad(node.operands[1]);
  builder.add_node(
      node, "embedding_wgrad", to_attributes(wgrad),
      std::array{Operand{node.operands[0]}, Operand{*d_out}, Operand{d_table, Access::kReadWrite}},
      Phase::kWgrad);
}

void check_embedding_wgrad(const OpSpec& spec) {
  const auto attributes = attributes_of<EmbeddingWgradAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& tokens = operands.next("tokens", Access::kRead, 1);
  const OperandSpec& d_out = operands.next("d_out", Access::kRead, 2);
  const OperandSpec& d_table =
      operands.next("d_table", accumulate_access(attributes.accumulate), 2);
  operands.require(tokens.dtype == DType::kI32 && tokens.shape[0] == d_out.shape[0],
                   "tokens must be i32 [N]");
  operands.require(
      d_table.shape[1] == d_out.shape[1] && d_table.dtype == accumulator_dtype(d_out.dtype),
      "d_table must be an accumulator of d_out's width");
  operands.done();
}

void check_position_embedding_wgrad(const OpSpec& spec) {
  const auto attributes = attributes_of<EmbeddingWgradAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& d_out = operands.next("d_out", Access::kRead, 2);
  const OperandSpec& d_positions =
      operands.next("d_positions", accumulate_access(attributes.accumulate), 2);
  operands.require(
      attributes.sequence > 0 && d_out.shape[0] % attributes.sequence == 0 &&
          d_positions.shape[0] >= attributes.sequence,
      "rows must be a multiple of sequence, and d_positions hold at least sequence rows");
  operands.require(
      d_positions.shape[1] == d_out.shape[1] && d_positions.dtype == accumulator_dtype(d_out.dtype),
      "d_positions must be an accumulator of d_out's width");
  operands.done();
}

}  // namespace

const OpDefinition kEmbeddingOp{
    .name = "embedding",
    .summary = "Rows of a table by token id, plus learned positions if given.",
    .op_class = OpClass::kCopy,
    .check = check_embedding,
    .cost = embedding_cost,
    .backward = embedding_backward,
};

const OpDefinition kEmbeddingWgradOp{
    .name = "embedding_wgrad",
    .summary = "Adds output gradients to the rows of their tokens, in token order.",
    .check = check_embedding_wgrad,
    .cost = elementwise_cost<1>,
};

const OpDefinition kPositionEmbeddingWgradOp{
    .name = "position_embedding_wgrad",
    .summary = "Sums output gradients over the sequences of a microbatch.",
    .check = check_position_embedding_wgrad,
    .cost = elementwise_cost<1>,
};

ValueId embedding(GraphBuilder& builder, ValueId tokens, ValueId table,
                  std::optional<ValueId> positions, int64_t sequence, std::string_view site) {
  const Value& weights = builder.value(table);
  const Shape shape{builder.value(tokens).shape[0], weights.shape[1]};
  const ValueId out = builder.add_activation(site, weights.dtype, shape);
  std::vector<Operand> operands{{tokens}, {table}};
  if (positions) {
    operands.push_back({*positions});
  }
  operands.push_back({out, Access::kWrite});
  builder.add_node("embedding",
                   to_attributes(EmbeddingAttributes{.sequence = sequence,
                                                     .has_positions = positions.has_value()}),
                   operands, site);
  return out;
}

}  // namespace braid
