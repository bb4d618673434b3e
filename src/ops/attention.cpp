#include "ops/attention.h"

#include <cmath>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

Shape lse_shape(const AttentionAttributes& attributes, int64_t rows) {
  return {rows / attributes.sequence, attributes.heads, attributes.sequence};
}

void check_layout(const OperandChecker& operands, const AttentionAttributes& attributes,
                  const OperandSpec& qkv) {
  operands.require(attributes.heads > 0 && attributes.kv_heads > 0 &&
                       attributes.heads % attributes.kv_heads == 0,
                   "heads must be a positive multiple of kv_heads");
  operands.require(
      attributes.head_size > 0 &&
          qkv.shape[1] == (attributes.heads + 2 * attributes.kv_heads) * attributes.head_size,
      "a row of qkv must hold heads + 2 kv_heads heads");
  operands.require(attributes.sequence > 0 && qkv.shape[0] % attributes.sequence == 0,
                   "rows must be a multiple of sequence");
  operands.require(
      attributes.padding.value_size >= 0 && attributes.padding.value_size <= attributes.head_size,
      "value_size must be at most head_size");
  operands.require(attributes.window.window >= 0, "window must not be negative");
}

void check_attention(const OpSpec& spec) {
  const auto attributes = attributes_of<AttentionAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& qkv = operands.next_floating("qkv", Access::kRead, 2);
  check_layout(operands, attributes, qkv);
  if (attributes.documents.documents) {
    expect_starts(operands, qkv.shape[0]);
  }
  operands.expect("out", Access::kWrite, qkv.dtype,
                  {qkv.shape[0], attributes.heads * attributes.head_size});
  operands.expect("lse", Access::kWrite, accumulator_dtype(qkv.dtype),
                  lse_shape(attributes, qkv.shape[0]));
  operands.done();
}

void check_attention_backward(const OpSpec& spec) {
  const auto attributes = attributes_of<AttentionAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& qkv = operands.next_floating("qkv", Access::kRead, 2);
  check_layout(operands, attributes, qkv);
  const Shape out{qkv.shape[0], attributes.heads * attributes.head_size};
  operands.expect("out", Access::kRead, qkv.dtype, out);
  operands.expect("lse", Access::kRead, accumulator_dtype(qkv.dtype),
                  lse_shape(attributes, qkv.shape[0]));
  operands.expect("d_out", Access::kRead, qkv.dtype, out);
  if (attributes.documents.documents) {
    expect_starts(operands, qkv.shape[0]);
  }
  operands.expect("d_qkv", Access::kWrite, qkv.dtype, qkv.shape);
  operands.done();
}

// Products per pair of query and key: 2 in forward (scores, values), 5 in backward (scores again,
// d_value, d_probability, d_query, d_key).
template <int kProducts>
OpCost attention_cost(const OpSpec& spec) {
  const auto attributes = attributes_of<AttentionAttributes>(spec);
  OpCost cost = operand_bytes(spec);
  const double out_elems =
      static_cast<double>(spec.operands[0].shape[0] * attributes.heads * attributes.head_size);
  const int64_t tokens = attributes.documents.mean_tokens(attributes.sequence);
  cost.flops = kProducts * 2.0 * out_elems * attributes.window.mean_keys(tokens);
  return cost;
}

void attention_backward(BackwardBuilder& builder, const Node& node) {
  const ValueId qkv = node.operands[0];
  const size_t num_inputs = node.operands.size() - 2;
  const ValueId out = node.operands[num_inputs];
  const std::optional<ValueId> d_out = builder.grad_of(out);
  if (!d_out) {
    return;
  }
  const ValueId d_qkv = builder.new_grad(qkv);
  std::vector<Operand> operands{{qkv}, {out}, {node.operands[num_inputs + 1]}, {*d_out}};
  if (num_inputs > 1) {
    operands.push_back({node.operands[1]});
  }
  operands.push_back({d_qkv, Access::kWrite});
  builder.add_node(node, "attention_backward", node.spec.attributes, operands, Phase::kDgrad);
  builder.add_grad(node, qkv, d_qkv);
}

/// Documents count as as many short sequences, and so do windows.
template <bool kBackward>
AttentionShape shape_of(const OpSpec& spec) {
  const auto attributes = attributes_of<AttentionAttributes>(spec);
  const int64_t tokens =
      attributes.window.equal_tokens(attributes.documents.mean_tokens(attributes.sequence));
  return {.sequences = spec.operands.at(0).shape[0] / tokens,
          .sequence = tokens,
          .queries = tokens,
          .heads = attributes.heads,
          .kv_heads = attributes.kv_heads,
          .head_size = attributes.head_size,
          .backward = kBackward,
          .documents = attributes.documents.documents || attributes.window.is_on(),
          .dtype = spec.operands[0].dtype};
}

/// Splits by whole sequences.
constexpr SplitTraits kAttentionSplit{
    .dimension = SplitDimension::kRows, .keeps_bits = false, .unit = [](const OpSpec& spec) {
      return attributes_of<AttentionAttributes>(spec).sequence;
    }};

}  // namespace

const OpDefinition kAttentionOp{
    .name = "attention",
    .summary = "Causal softmax attention with grouped key/value heads.",
    .family = OpFamily::kAttention,
    .kind = OpKind::kAttention,
    .role = OpRole::kAttention,
    .check = check_attention,
    .cost = attention_cost<2>,
    .backward = attention_backward,
    .recompute = Recompute::kAttention,
    .attention_shape = shape_of<false>,
    .split = kAttentionSplit,
    .integers = one_document,
};

const OpDefinition kAttentionBackwardOp{
    .name = "attention_backward",
    .summary = "Gradient of attention with respect to packed qkv.",
    .family = OpFamily::kAttention,
    .kind = OpKind::kAttention,
    .check = check_attention_backward,
    .cost = attention_cost<5>,
    .attention_shape = shape_of<true>,
    .split = kAttentionSplit,
    .integers = one_document,
};

ValueId attention(GraphBuilder& builder, ValueId qkv, AttentionAttributes attributes,
                  std::string_view site, std::optional<ValueId> starts) {
  const Value input = builder.value(qkv);
  if (attributes.scale == 0.0) {
    attributes.scale = 1.0 / std::sqrt(static_cast<double>(attributes.head_size));
  }
  const ValueId out = builder.add_activation(
      site, input.dtype, {input.shape[0], attributes.heads * attributes.head_size});
  const ValueId lse =
      builder.add_activation(fmt::format("{}.lse", site), accumulator_dtype(input.dtype),
                             lse_shape(attributes, input.shape[0]));
  std::vector<Operand> operands{{qkv}};
  if (starts) {
    operands.push_back({*starts});
  }
  operands.push_back({out, Access::kWrite});
  operands.push_back({lse, Access::kWrite});
  builder.add_node("attention", to_attributes(attributes), operands, site);
  return out;
}

}  // namespace braid
