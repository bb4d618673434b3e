#include "ops/attention_step.h"

#include <algorithm>

#include "ops/attributes.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

bool in_range(int64_t begin, int64_t count, int64_t size) {
  return begin >= 0 && count > 0 && begin + count <= size;
}

/// Checks qkv and kv; returns qkv.
const OperandSpec& check_inputs(OperandChecker& operands, const AttentionStepAttributes& a) {
  const OperandSpec& qkv = operands.next_floating("qkv", Access::kRead, 2);
  const OperandSpec& kv = operands.next("kv", Access::kRead, 2);
  operands.require(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0,
                   "heads must be a positive multiple of kv_heads");
  operands.require(a.head_size > 0 && qkv.shape[1] == (a.heads + 2 * a.kv_heads) * a.head_size,
                   "a row of qkv must hold heads + 2 kv_heads heads");
  operands.require(kv.dtype == qkv.dtype && kv.shape[1] == 2 * a.kv_heads * a.head_size,
                   "a row of kv must hold 2 kv_heads heads of qkv's dtype");
  operands.require(a.sequence > 0 && qkv.shape[0] % a.sequence == 0 && a.kv_sequence > 0 &&
                       kv.shape[0] == qkv.shape[0] / a.sequence * a.kv_sequence,
                   "qkv and kv must hold rows of as many sequences");
  operands.require(in_range(a.query_begin, a.queries, a.sequence) &&
                       in_range(a.key_begin, a.keys, a.kv_sequence),
                   "queries and keys must lie in their sequences");
  operands.require(!a.causal || a.keys >= a.queries, "every query must see a key");
  return qkv;
}

bool ascend(const TokenPositions& at, int64_t tokens) {
  return at.fits(tokens) &&
         (at.split == 0 || at.split == tokens || at.first_begin + at.split <= at.second_begin);
}

void check_limits(OperandChecker& operands, const AttentionStepAttributes& a,
                  const OperandSpec& qkv) {
  operands.require(ascend(a.key_positions, a.kv_sequence), "positions of keys must ascend");
  operands.require(a.window.limit.window >= 0, "window must not be negative");
  operands.require(ascend(a.window.query_positions, a.sequence),
                   "positions of queries must ascend");
  if (a.documents.documents) {
    expect_starts(operands, qkv.shape[0]);
  }
}

Shape out_shape(const AttentionStepAttributes& a, const OperandSpec& qkv) {
  return {qkv.shape[0], a.heads * a.head_size};
}

Shape lse_shape(const AttentionStepAttributes& a, const OperandSpec& qkv) {
  return {qkv.shape[0] / a.sequence, a.heads, a.sequence};
}

void check_step(const OpSpec& spec) {
  const auto attributes = attributes_of<AttentionStepAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& qkv = check_inputs(operands, attributes);
  const DType wide = accumulator_dtype(qkv.dtype);
  const Access access = accumulate_access(attributes.accumulate);
  check_limits(operands, attributes, qkv);
  operands.expect("sum", access, wide, out_shape(attributes, qkv));
  operands.expect("lse", access, wide, lse_shape(attributes, qkv));
  operands.done();
}

void check_step_backward(const OpSpec& spec) {
  const auto attributes = attributes_of<AttentionStepBackwardAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& qkv = check_inputs(operands, attributes.step);
  const DType wide = accumulator_dtype(qkv.dtype);
  const Shape out = out_shape(attributes.step, qkv);
  operands.expect("out", Access::kRead, qkv.dtype, out);
  operands.expect("lse", Access::kRead, wide, lse_shape(attributes.step, qkv));
  operands.expect("d_out", Access::kRead, qkv.dtype, out);
  check_limits(operands, attributes.step, qkv);
  operands.expect("d_q", accumulate_access(attributes.accumulate_q), wide, out);
  operands.expect("d_kv", accumulate_access(attributes.accumulate_kv), wide,
                  spec.operands[1].shape);
  operands.done();
}

/// Of one sequence that is one document.
double pairs_of_whole(const AttentionStepAttributes& a) {
  if (a.window.is_on()) {
    int64_t pairs = 0;
    for (int64_t query = 0; query < a.queries; ++query) {
      const SeenKeys seen = seen_keys(a, query);
      pairs += seen.end - seen.first;
    }
    return static_cast<double>(pairs);
  }
  const auto queries = static_cast<double>(a.queries);
  const double hidden = a.causal ? 0.5 * (queries - 1) : 0.0;
  return queries * (static_cast<double>(a.keys) - hidden);
}

/// Pairs of query and key of one sequence. With documents of a mean length L, a causal step has
/// those of each document; another one has those of the one document that reaches from its keys to
/// its queries, which begins at random: L * L / 6.
double pairs_of(const AttentionStepAttributes& a) {
  const auto queries = static_cast<double>(a.queries);
  const double pairs = pairs_of_whole(a);
  const auto tokens = static_cast<double>(a.documents.mean_tokens(a.keys));
  if (a.documents.mean_tokens(a.keys) == a.keys) {
    return pairs;
  }
  return std::min(pairs, a.causal ? queries * (tokens + 1) / 2 : tokens * tokens / 6);
}

/// The pairs times the elements of a head: 2 products in forward (scores, values), 5 in backward.
OpCost step_cost(const OpSpec& spec, const AttentionStepAttributes& a, int products) {
  OpCost cost = operand_bytes(spec);
  const int64_t num_sequences = spec.operands[0].shape[0] / a.sequence;
  cost.flops = 2.0 * products * static_cast<double>(num_sequences) * pairs_of(a) *
               static_cast<double>(a.heads * a.head_size);
  return cost;
}

OpCost forward_cost(const OpSpec& spec) {
  return step_cost(spec, attributes_of<AttentionStepAttributes>(spec), 2);
}

OpCost backward_cost(const OpSpec& spec) {
  return step_cost(spec, attributes_of<AttentionStepBackwardAttributes>(spec).step, 5);
}

/// With a window, as many keys as a causal query of so many sees half of on average.
int64_t priced_keys(const AttentionStepAttributes& a) {
  if (!a.window.is_on()) {
    return a.keys;
  }
  const double mean = pairs_of(a) / static_cast<double>(a.queries);
  return std::clamp<int64_t>(static_cast<int64_t>(2 * mean), 1, a.keys);
}

AttentionShape shape_of(const OpSpec& spec, const AttentionStepAttributes& a, bool backward) {
  return {.sequences = spec.operands.at(0).shape[0] / a.sequence,
          .sequence = priced_keys(a),
          .queries = a.queries,
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .head_size = a.head_size,
          .backward = backward,
          .documents = a.documents.documents || a.window.is_on(),
          .dtype = spec.operands[0].dtype};
}

AttentionShape forward_shape(const OpSpec& spec) {
  return shape_of(spec, attributes_of<AttentionStepAttributes>(spec), false);
}

AttentionShape backward_shape(const OpSpec& spec) {
  return shape_of(spec, attributes_of<AttentionStepBackwardAttributes>(spec).step, true);
}

}  // namespace

SeenKeys seen_keys(const AttentionStepAttributes& step, int64_t query) {
  const int64_t end =
      step.causal ? std::min(query + 1 + step.keys - step.queries, step.keys) : step.keys;
  if (!step.window.is_on()) {
    return {0, end};
  }
  const int64_t position = step.window.first_position(step.query_begin + query);
  const int64_t hidden = step.key_positions.before(position, step.kv_sequence) - step.key_begin;
  return {std::clamp<int64_t>(hidden, 0, end), end};
}

// The backward of attention_finish covers all its steps. Their sum is never recomputed, since a sum
// of several ops cannot be recomputed by one of them.
const OpDefinition kAttentionStepOp{
    .name = "attention_step",
    .summary = "Attention to some of the keys, merged into that to others by their log-sum-exp.",
    .family = OpFamily::kAttention,
    .kind = OpKind::kAttention,
    .check = check_step,
    .cost = forward_cost,
    .recompute = Recompute::kNone,
    .attention_shape = forward_shape,
    .split = kNeverSplit,
    .integers = one_document,
};

const OpDefinition kAttentionStepBackwardOp{
    .name = "attention_step_backward",
    .summary = "What some pairs of query and key add to the gradients of attention.",
    .family = OpFamily::kAttention,
    .kind = OpKind::kAttention,
    .check = check_step_backward,
    .cost = backward_cost,
    .attention_shape = backward_shape,
    .split = kNeverSplit,
    .integers = one_document,
};

}  // namespace braid
