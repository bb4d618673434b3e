#include "ops/mla_qkv.h"

#include <algorithm>
#include <array>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"
#include "ops/positioned_rows.h"

namespace braid {
namespace {

/// The shapes of the operands for so many rows.
struct MlaShapes {
  Shape q, kv, k_rope, qkv;

  MlaShapes(const MlaAttributes& a, int64_t rows)
      : q{rows, a.heads * (a.plain + a.rotated)},
        kv{rows, a.heads * (a.plain + a.value)},
        k_rope{rows, a.rotated},
        qkv{rows, 3 * a.heads * a.head_size} {}
};

template <bool kBackward>
void check_mla(const OpSpec& spec) {
  const auto a = attributes_of<MlaAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& first = operands.next_floating(kBackward ? "d_qkv" : "q", Access::kRead, 2);
  operands.require(a.heads > 0 && a.plain > 0 && a.value > 0, "parts of heads must be positive");
  operands.require(a.rotated > 0 && a.rotated % 2 == 0, "rotated must be even and positive");
  operands.require(a.head_size >= std::max(a.plain + a.rotated, a.value),
                   "head_size must hold plain + rotated, and value");
  require_positions(operands, a, first);
  require_rope(operands, a.theta, a.scaling);
  const MlaShapes shapes(a, first.shape[0]);
  operands.require(first.shape == (kBackward ? shapes.qkv : shapes.q),
                   "the first operand must hold its part of every head");
  const auto check_starts = [&] {
    if (a.documents.documents) {
      expect_starts(operands, first.shape[0]);
    }
  };
  if (kBackward) {
    check_starts();
    operands.expect("d_q", Access::kWrite, first.dtype, shapes.q);
    operands.expect("d_kv", Access::kWrite, first.dtype, shapes.kv);
    operands.expect("d_k_rope", Access::kWrite, first.dtype, shapes.k_rope);
  } else {
    operands.expect("kv", Access::kRead, first.dtype, shapes.kv);
    operands.expect("k_rope", Access::kRead, first.dtype, shapes.k_rope);
    check_starts();
    operands.expect("qkv", Access::kWrite, first.dtype, shapes.qkv);
  }
  operands.done();
}

void mla_qkv_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> d_qkv = builder.grad_of(node.operands.back());
  if (!d_qkv) {
    return;
  }
  const std::array grads{builder.new_grad(node.operands[0]), builder.new_grad(node.operands[1]),
                         builder.new_grad(node.operands[2])};
  std::vector<Operand> operands{{*d_qkv}};
  if (attributes_of<MlaAttributes>(node.spec).documents.documents) {
    operands.push_back({node.operands[3]});
  }
  for (const ValueId grad : grads) {
    operands.push_back({grad, Access::kWrite});
  }
  builder.add_node(node, "mla_qkv_backward", node.spec.attributes, operands, Phase::kDgrad);
  for (size_t i = 0; i < grads.size(); ++i) {
    builder.add_grad(node, node.operands[i], grads[i]);
  }
}

}  // namespace

const OpDefinition kMlaQkvOp{
    .name = "mla_qkv",
    .summary = "Packed qkv rows out of the parts of multi-head latent attention, rotated.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_mla<false>,
    .cost = elementwise_cost<2>,
    .backward = mla_qkv_backward,
    .recompute = Recompute::kNorms,
    .split = kSplitByPositions<MlaAttributes>,
    .pieces = kPositionPieces<MlaAttributes>,
    .integers = one_document,
};

const OpDefinition kMlaQkvBackwardOp{
    .name = "mla_qkv_backward",
    .summary = "Gradients of the parts of multi-head latent attention.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_mla<true>,
    .cost = elementwise_cost<2>,
    .split = kSplitByPositions<MlaAttributes>,
    .pieces = kPositionPieces<MlaAttributes>,
    .integers = one_document,
};

ValueId mla_qkv(GraphBuilder& builder, const MlaOperands& operands, MlaAttributes attributes,
                std::string_view site) {
  const Value q = builder.value(operands.q);
  const ValueId qkv = builder.add_activation(site, q.dtype, MlaShapes(attributes, q.shape[0]).qkv);
  attributes.documents.documents = operands.starts.has_value();
  std::vector<Operand> list{{operands.q}, {operands.kv}, {operands.k_rope}};
  if (operands.starts) {
    list.push_back({*operands.starts});
  }
  list.push_back({qkv, Access::kWrite});
  builder.add_node("mla_qkv", to_attributes(attributes), list, site);
  return qkv;
}

}  // namespace braid
