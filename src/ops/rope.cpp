#include "ops/rope.h"

#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"
#include "ops/positioned_rows.h"

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
  operands.require(attributes.part.rotated >= 0 && attributes.rotated() % 2 == 0 &&
                       attributes.rotated() <= attributes.head_size,
                   "rotated must be even, and at most head_size");
  require_positions(operands, attributes, qkv);
  require_rope(operands, attributes.theta, attributes.scaling);
  if (attributes.documents.documents) {
    expect_starts(operands, qkv.shape[0]);
  }
  operands.expect("out", Access::kWrite, qkv.dtype, qkv.shape);
  operands.done();
}

void rope_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> d_out = builder.grad_of(node.operands.back());
  if (!d_out) {
    return;
  }
  auto attributes = attributes_of<RopeAttributes>(node.spec);
  attributes.inverse = !attributes.inverse;
  const ValueId qkv = node.operands[0];
  const ValueId d_qkv = builder.new_grad(qkv);
  std::vector<Operand> operands{{*d_out}};
  if (attributes.documents.documents) {
    operands.push_back({node.operands[1]});
  }
  operands.push_back({d_qkv, Access::kWrite});
  builder.add_node(node, "rope", to_attributes(attributes), operands, Phase::kDgrad);
  builder.add_grad(node, qkv, d_qkv);
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
    .kernel_rate = {.part = 0.91},
    .backward = rope_backward,
    .split = kSplitByPositions<RopeAttributes>,
    .pieces = kPositionPieces<RopeAttributes>,
    .integers = one_document,
};

ValueId rope(GraphBuilder& builder, ValueId qkv, RopeAttributes attributes, std::string_view site,
             std::optional<ValueId> starts) {
  const Value input = builder.value(qkv);
  const ValueId out = builder.add_activation(site, input.dtype, input.shape);
  attributes.documents.documents = starts.has_value();
  std::vector<Operand> operands{{qkv}};
  if (starts) {
    operands.push_back({*starts});
  }
  operands.push_back({out, Access::kWrite});
  builder.add_node("rope", to_attributes(attributes), operands, site);
  return out;
}

}  // namespace braid
