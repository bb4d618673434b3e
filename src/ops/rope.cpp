#include "ops/rope.h"

#include <array>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_rope(const OpSpec& spec) {
  const auto attributes = attributes_of<RopeAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& qkv = operands.next_floating("qkv", Access::kRead, 2);
  operands.require(attributes.head_size > 0 && attributes.head_size % 2 == 0,
                   "head_size must be even and positive");
  operands.require(attributes.heads > 0 && attributes.kv_heads > 0,
                   "heads and kv_heads must be positive");
  operands.require(
      qkv.shape[1] == (attributes.heads + 2 * attributes.kv_heads) * attributes.head_size,
      "a row must hold heads + 2 kv_heads heads");
  operands.require(attributes.sequence > 0 && qkv.shape[0] % attributes.sequence == 0,
                   "rows must be a multiple of sequence");
  operands.require(attributes.positions.fits(attributes.sequence),
                   "positions must be two runs of sequence tokens that do not overlap");
  operands.expect("out", Access::kWrite, qkv.dtype, qkv.shape);
  operands.done();
}

void rope_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> d_out = builder.grad_of(node.operands[1]);
  if (!d_out) {
    return;
  }
  auto attributes = attributes_of<RopeAttributes>(node.spec);
  attributes.inverse = !attributes.inverse;
  const ValueId qkv = node.operands[0];
  const ValueId d_qkv = builder.new_grad(qkv);
  builder.add_node(node, "rope", to_attributes(attributes),
                   std::array{Operand{*d_out}, Operand{d_qkv, Access::kWrite}}, Phase::kDgrad);
  builder.add_grad(node, qkv, d_qkv);
}

/// Rows of whole sequences; for a single sequence 1, since its rows are independent.
int64_t rows_together(const OpSpec& spec) {
  const int64_t sequence = attributes_of<RopeAttributes>(spec).sequence;
  return sequence == spec.operands[0].shape[0] ? 1 : sequence;
}

void narrow(OpSpec& piece, int64_t begin, int64_t end) {
  auto attributes = attributes_of<RopeAttributes>(piece);
  if (attributes.sequence > end - begin) {  // a part of the only sequence
    attributes.sequence = end - begin;
    attributes.positions = attributes.positions.part(begin, end - begin);
    piece.attributes = to_attributes(attributes);
  }
}

constexpr SplitTraits kRopeSplit{
    .dimension = SplitDimension::kRows, .unit = rows_together, .narrow = narrow};

/// Runs of rows at consecutive positions.
std::vector<RowRun> runs_of_positions(const OpSpec& spec) {
  const auto attributes = attributes_of<RopeAttributes>(spec);
  const TokenPositions& positions = attributes.positions;
  std::vector<RowRun> runs;
  for (int64_t row = 0; row < spec.operands[0].shape[0]; row += attributes.sequence) {
    runs.push_back({.begin = row, .index = positions.of(0)});
    if (positions.split > 0 && positions.split < attributes.sequence) {
      runs.push_back({.begin = row + positions.split, .index = positions.of(positions.split)});
    }
  }
  return runs;
}

void forget_positions(OpSpec& spec) {
  auto attributes = attributes_of<RopeAttributes>(spec);
  attributes.sequence = 0;
  attributes.positions = {};
  spec.attributes = to_attributes(attributes);
}

}  // namespace

const OpDefinition kRopeOp{
    .name = "rope",
    .summary = "Rotary position embedding of the query and key heads of packed qkv rows.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .role = OpRole::kRotary,
    .check = check_rope,
    .cost = elementwise_cost<3>,
    .backward = rope_backward,
    .split = kRopeSplit,
    .pieces = {.row_runs = runs_of_positions, .forget_piece = forget_positions},
};

ValueId rope(GraphBuilder& builder, ValueId qkv, const RopeAttributes& attributes,
             std::string_view site) {
  const Value input = builder.value(qkv);
  const ValueId out = builder.add_activation(site, input.dtype, input.shape);
  builder.add_node("rope", to_attributes(attributes),
                   std::array{Operand{qkv}, Operand{out, Access::kWrite}}, site);
  return out;
}

}  // namespace braid
