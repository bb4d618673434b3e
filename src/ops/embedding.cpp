#include "ops/embedding.h"

#include <algorithm>
#include <array>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

/// A part of a table may begin anywhere, also after the vocabulary, where it is padding.
void check_vocabulary(const OperandChecker& operands, int64_t vocabulary, int64_t begin) {
  operands.require(vocabulary >= 0 && begin >= 0 && (vocabulary > 0 || begin == 0),
                   "a table that does not begin with token 0 needs the vocabulary of all ranks");
}

void check_embedding(const OpSpec& spec) {
  const auto attributes = attributes_of<EmbeddingAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& tokens = operands.next("tokens", Access::kRead, 1);
  const OperandSpec& table = operands.next_floating("table", Access::kRead, 2);
  operands.require(tokens.dtype == DType::kI32, "tokens must be i32");
  operands.require(attributes.sequence > 0 && tokens.shape[0] % attributes.sequence == 0,
                   "the number of tokens must be a multiple of sequence");
  check_vocabulary(operands, attributes.vocabulary, attributes.vocabulary_begin);
  operands.require(attributes.has_positions || attributes.adds_positions,
                   "there are no positions to leave out");
  if (attributes.has_positions) {
    const OperandSpec& positions = operands.next("positions", Access::kRead, 2);
    operands.require(positions.dtype == table.dtype && positions.shape[1] == table.shape[1] &&
                         attributes.at.fits(attributes.sequence) &&
                         positions.shape[0] >= attributes.at.end(attributes.sequence),
                     "positions must be [at least sequence, C] of the table's dtype");
  }
  operands.require(attributes.has_positions || !attributes.documents.documents,
                   "documents need positions");
  if (attributes.documents.documents) {
    expect_starts(operands, tokens.shape[0]);
  }
  operands.expect("out", Access::kWrite, table.dtype, {tokens.shape[0], table.shape[1]});
  operands.done();
}

/// Bytes of `rows` rows of an operand, at most those of the whole operand.
double bytes_of_rows(const OperandSpec& table, int64_t rows) {
  return static_cast<double>(std::min(rows, table.shape[0]) * table.shape[1]) *
         static_cast<double>(dtype_bytes(table.dtype));
}

// Only parts of the tables are read: one row per token, and the positions of one sequence.
OpCost embedding_cost(const OpSpec& spec) {
  const auto attributes = attributes_of<EmbeddingAttributes>(spec);
  const double out_bytes = size_bytes(spec.operands.back());
  OpCost cost{.bytes_read = size_bytes(spec.operands[0]) + out_bytes, .bytes_written = out_bytes};
  if (attributes.has_positions && attributes.adds_positions) {
    cost.flops = elems(spec, spec.operands.size() - 1);
    cost.bytes_read += bytes_of_rows(spec.operands[2], attributes.sequence);
  }
  return cost;
}

// One addition per element of d_out, the second-to-last operand. An overwritten table is written
// completely; in a table that is added to, at most `rows_touched` rows are read and written.
OpCost table_wgrad_cost(const OpSpec& spec, int64_t rows_touched) {
  const size_t d_table = spec.operands.size() - 1;
  OpCost cost = operand_bytes(spec);
  cost.flops = elems(spec, d_table - 1);
  if (reads(spec.operands[d_table].access)) {
    const double untouched_bytes =
        size_bytes(spec.operands[d_table]) - bytes_of_rows(spec.operands[d_table], rows_touched);
    cost.bytes_read -= untouched_bytes;
    cost.bytes_written -= untouched_bytes;
  }
  return cost;
}

OpCost embedding_wgrad_cost(const OpSpec& spec) {
  return table_wgrad_cost(spec, spec.operands[0].shape[0]);
}

OpCost position_embedding_wgrad_cost(const OpSpec& spec) {
  return table_wgrad_cost(spec, attributes_of<PositionEmbeddingWgradAttributes>(spec).sequence);
}

void embedding_backward(BackwardBuilder& builder, const Node& node) {
  const auto attributes = attributes_of<EmbeddingAttributes>(node.spec);
  const std::optional<ValueId> d_out = builder.grad_of(node.operands.back());
  if (!d_out) {
    return;
  }
  if (attributes.has_positions) {
    const ValueId d_positions = builder.main_grad(node.operands[2]);
    std::vector<Operand> operands{{*d_out}};
    if (attributes.documents.documents) {
      operands.push_back({node.operands[3]});
    }
    operands.push_back({d_positions, Access::kReadWrite});
    builder.add_node(
        node, "position_embedding_wgrad",
        to_attributes(PositionEmbeddingWgradAttributes{.sequence = attributes.sequence,
                                                       .at = attributes.at,
                                                       .documents = attributes.documents}),
        operands, Phase::kWgrad);
  }
  const EmbeddingWgradAttributes wgrad{.vocabulary = attributes.vocabulary,
                                       .vocabulary_begin = attributes.vocabulary_begin};
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
  const OperandSpec& d_out = operands.next_floating("d_out", Access::kRead, 2);
  const OperandSpec& d_table =
      operands.next("d_table", accumulate_access(attributes.accumulate), 2);
  operands.require(tokens.dtype == DType::kI32 && tokens.shape[0] == d_out.shape[0],
                   "tokens must be i32 [N]");
  check_vocabulary(operands, attributes.vocabulary, attributes.vocabulary_begin);
  operands.require(
      d_table.shape[1] == d_out.shape[1] && is_main_grad_dtype(d_out.dtype, d_table.dtype),
      "d_table must be a main grad of d_out's width");
  operands.done();
}

void check_position_embedding_wgrad(const OpSpec& spec) {
  const auto attributes = attributes_of<PositionEmbeddingWgradAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& d_out = operands.next_floating("d_out", Access::kRead, 2);
  if (attributes.documents.documents) {
    expect_starts(operands, d_out.shape[0]);
  }
  const OperandSpec& d_positions =
      operands.next("d_positions", accumulate_access(attributes.accumulate), 2);
  operands.require(
      attributes.sequence > 0 && d_out.shape[0] % attributes.sequence == 0 &&
          attributes.at.fits(attributes.sequence) &&
          d_positions.shape[0] >= attributes.at.end(attributes.sequence),
      "rows must be a multiple of sequence, and d_positions hold at least sequence rows");
  operands.require(
      d_positions.shape[1] == d_out.shape[1] && d_positions.dtype == accumulator_dtype(d_out.dtype),
      "d_positions must be an accumulator of d_out's width");
  operands.done();
}

/// For an op whose operand 0 are tokens, whose operand `kTable` has a row for each token that there
/// is, and whose other integers are starts of documents.
template <class Attributes, size_t kTable>
IntegerNeed known_tokens(const OpSpec& spec, size_t operand) {
  if (operand > 0) {
    return one_document(spec, operand);
  }
  const auto attributes = attributes_of<Attributes>(spec);
  const TableRows rows(attributes.vocabulary, attributes.vocabulary_begin,
                       spec.operands[kTable].shape[0]);
  return {.limit = rows.vocabulary};
}

}  // namespace

const OpDefinition kEmbeddingOp{
    .name = "embedding",
    .summary = "Rows of a table by token id, plus learned positions if given.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kEmbeddingAndLoss,
    .check = check_embedding,
    .cost = embedding_cost,
    .kernel_rate = {.part = 0.92},
    .backward = embedding_backward,
    .split = kNeverSplit,
    .part_begin = "vocabulary_begin",
    .integers = known_tokens<EmbeddingAttributes, 1>,
};

const OpDefinition kEmbeddingWgradOp{
    .name = "embedding_wgrad",
    .summary = "Adds output gradients to the rows of their tokens, in token order.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kEmbeddingAndLoss,
    .role = OpRole::kTableWgrad,
    .check = check_embedding_wgrad,
    .cost = embedding_wgrad_cost,
    .kernel_rate = {.part = 0.57},
    .narrow_main_grads = true,
    .split = kNeverSplit,
    .part_begin = "vocabulary_begin",
    .integers = known_tokens<EmbeddingWgradAttributes, 2>,
};

const OpDefinition kPositionEmbeddingWgradOp{
    .name = "position_embedding_wgrad",
    .summary = "Sums output gradients over the sequences of a microbatch.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kEmbeddingAndLoss,
    .role = OpRole::kTableWgrad,
    .check = check_position_embedding_wgrad,
    .cost = position_embedding_wgrad_cost,
    .split = kNeverSplit,
    .integers = one_document,
};

ValueId embedding(GraphBuilder& builder, const EmbeddingOperands& operands,
                  EmbeddingAttributes attributes, std::string_view site) {
  attributes.has_positions = operands.positions.has_value();
  attributes.documents.documents = operands.starts.has_value();
  const Value& weights = builder.value(operands.table);
  const Shape shape{builder.value(operands.tokens).shape[0], weights.shape[1]};
  const ValueId out = builder.add_activation(site, weights.dtype, shape);
  std::vector<Operand> list{{operands.tokens}, {operands.table}};
  if (operands.positions) {
    list.push_back({*operands.positions});
  }
  if (operands.starts) {
    list.push_back({*operands.starts});
  }
  list.push_back({out, Access::kWrite});
  builder.add_node("embedding", to_attributes(attributes), list, site);
  return out;
}

ValueId embedding(GraphBuilder& builder, ValueId tokens, ValueId table,
                  std::optional<ValueId> positions, int64_t sequence, std::string_view site) {
  return embedding(builder, {.tokens = tokens, .table = table, .positions = positions},
                   {.sequence = sequence}, site);
}

}  // namespace braid
