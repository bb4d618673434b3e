#include "ops/head_norm.h"

#include <array>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

/// What the sizes of heads say of the operands; for the attributes of both ops.
struct HeadSizes {
  int64_t row = 0;
  int64_t query_weight = 0;
  int64_t key_weight = 0;
  int64_t norms = 0;  ///< G, of a row

  template <class Attributes>
  explicit HeadSizes(const Attributes& a)
      : row((a.heads + 2 * a.kv_heads) * a.head_size),
        query_weight((a.whole ? a.heads : 1) * a.head_size),
        key_weight((a.whole ? a.kv_heads : 1) * a.head_size),
        norms(a.whole ? 2 : a.heads + a.kv_heads) {}
};

/// Checks the operands that both ops begin with: qkv, which is returned, and the weights.
template <class Attributes>
const OperandSpec& check_inputs(OperandChecker& operands, const Attributes& attributes) {
  const OperandSpec& qkv = operands.next_floating("qkv", Access::kRead, 2);
  operands.require(attributes.heads > 0 && attributes.kv_heads > 0 && attributes.head_size > 0,
                   "heads, kv_heads and head_size must be positive");
  const HeadSizes sizes(attributes);
  operands.require(qkv.shape[1] == sizes.row, "a row must hold heads + 2 kv_heads heads");
  operands.expect("query_weight", Access::kRead, qkv.dtype, {sizes.query_weight});
  operands.expect("key_weight", Access::kRead, qkv.dtype, {sizes.key_weight});
  return qkv;
}

void check_head_norm(const OpSpec& spec) {
  const auto attributes = attributes_of<HeadNormAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& qkv = check_inputs(operands, attributes);
  operands.expect("y", Access::kWrite, qkv.dtype, qkv.shape);
  operands.expect("rstd", Access::kWrite, accumulator_dtype(qkv.dtype),
                  {qkv.shape[0], HeadSizes(attributes).norms});
  operands.done();
}

void check_head_norm_backward(const OpSpec& spec) {
  const auto attributes = attributes_of<HeadNormBackwardAttributes>(spec);
  const Access access = accumulate_access(attributes.accumulate);
  OperandChecker operands(spec);
  const OperandSpec& qkv = check_inputs(operands, attributes);
  const DType accumulator = accumulator_dtype(qkv.dtype);
  const HeadSizes sizes(attributes);
  operands.expect("rstd", Access::kRead, accumulator, {qkv.shape[0], sizes.norms});
  operands.expect("dy", Access::kRead, qkv.dtype, qkv.shape);
  operands.expect("d_qkv", Access::kWrite, qkv.dtype, qkv.shape);
  operands.expect("d_query_weight", access, accumulator, {sizes.query_weight});
  operands.expect("d_key_weight", access, accumulator, {sizes.key_weight});
  operands.done();
}

void head_norm_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> dy = builder.grad_of(node.operands[3]);
  if (!dy) {
    return;
  }
  const auto a = attributes_of<HeadNormAttributes>(node.spec);
  const ValueId qkv = node.operands[0];
  const ValueId d_qkv = builder.new_grad(qkv);
  builder.add_node(
      node, "head_norm_backward",
      to_attributes(HeadNormBackwardAttributes{.heads = a.heads,
                                               .kv_heads = a.kv_heads,
                                               .head_size = a.head_size,
                                               .whole = a.whole,
                                               .offset = a.offset}),
      std::array{Operand{qkv}, Operand{node.operands[1]}, Operand{node.operands[2]},
                 Operand{node.operands[4]}, Operand{*dy}, Operand{d_qkv, Access::kWrite},
                 Operand{builder.main_grad(node.operands[1]), Access::kReadWrite},
                 Operand{builder.main_grad(node.operands[2]), Access::kReadWrite}},
      Phase::kDgrad);
  builder.add_grad(node, qkv, d_qkv);
}

/// In the backward: all operands but weights and their gradients.
bool is_by_row(const OpSpec& /*spec*/, size_t operand) {
  return operand == 0 || (operand >= 3 && operand <= 5);
}

}  // namespace

const OpDefinition kHeadNormOp{
    .name = "head_norm",
    .summary = "Root-mean-square normalisation of the query and key heads of packed qkv rows.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kNorm,
    .check = check_head_norm,
    .cost = elementwise_cost<4>,
    .kernel_rate = {.part = 0.60},
    .backward = head_norm_backward,
    .recompute = Recompute::kNorms,
    .split = rows_but_operands<1, 3>(),
};

const OpDefinition kHeadNormBackwardOp{
    .name = "head_norm_backward",
    .summary = "Gradients of head_norm with respect to rows and weights.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kNorm,
    .check = check_head_norm_backward,
    .cost = elementwise_cost<9>,
    .kernel_rate = {.part = 0.53},
    .split = kNeverSplit,  // sums over rows
    .pieces = {.is_by_row = is_by_row},
};

ValueId head_norm(GraphBuilder& builder, const HeadNormOperands& operands,
                  const HeadNormAttributes& attributes, std::string_view site) {
  const Value input = builder.value(operands.qkv);
  const ValueId y = builder.add_activation(site, input.dtype, input.shape);
  const ValueId rstd =
      builder.add_activation(fmt::format("{}.rstd", site), accumulator_dtype(input.dtype),
                             {input.shape[0], HeadSizes(attributes).norms});
  builder.add_node("head_norm", to_attributes(attributes),
                   std::array{Operand{operands.qkv}, Operand{operands.query_weight},
                              Operand{operands.key_weight}, Operand{y, Access::kWrite},
                              Operand{rstd, Access::kWrite}},
                   site);
  return y;
}

}  // namespace braid
