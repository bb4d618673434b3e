#include "ops/mla_qkv.h"

#include <algorithm>
#include <array>

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
  if (kBackward) {
    operands.expect("d_q", Access::kWrite, first.dtype, shapes.q);
    operands.expect("d_kv", Access::kWrite, first.dtype, shapes.kv);
    operands.expect("d_k_rope", Access::kWrite, first.dtype, shapes.k_rope);
  } else {
    operands.expect("kv", Access::kRead, first.dtype, shapes.kv);
    operands.expect("k_rope", Access::kRead, first.dtype, shapes.k_rope);
    operands.expect("qkv", Access::kWrite, first.dtype, shapes.qkv);
  }
  operands.done();
}

void mla_qkv_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> d_qkv = builder.grad_of(node.operands[3]);
  if (!d_qkv) {
    return;
  }
  const std::array grads{builder.new_grad(node.operands[0]), builder.new_grad(node.operands[1]),
                         builder.new_grad(node.operands[2])};
  builder.add_node(node, "mla_qkv_backward", node.spec.attributes,
                   std::array{Operand{*d_qkv}, Operand{grads[0], Access::kWrite},
                              Operand{grads[1], Access::kWrite}, Operand{grads[2], Access::kWrite}},
                   Phase::kDgrad);
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
};

ValueId mla_qkv(GraphBuilder& builder, const MlaOperands& operands, const MlaAttributes& attributes,
                std::string_view site) {
  const Value q = builder.value(operands.q);
  const ValueId qkv = builder.add_activation(site, q.dtype, MlaShapes(attributes, q.shape[0]).qkv);
  builder.add_node("mla_qkv", to_attributes(attributes),
                   std::array{Operand{operands.q}, Operand{operands.kv}, Operand{operands.k_rope},
                              Operand{qkv, Access::kWrite}},
                   site);
  return qkv;
}

}  // namespace braid
