#include "ops/context_layout.h"

#include <array>
#include <numeric>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_pack_kv(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& qkv = operands.next_floating("qkv", Access::kRead, 2);
  const OperandSpec& kv = operands.next("kv", Access::kWrite, 2);
  operands.require(kv.dtype == qkv.dtype && kv.shape[0] == qkv.shape[0],
                   "kv must have the rows and the dtype of qkv");
  operands.require(kv.shape[1] < qkv.shape[1], "kv must be narrower than qkv");
  operands.done();
}

void check_assemble_qkv(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& d_q = operands.next_floating("d_q", Access::kRead, 2);
  const OperandSpec& d_kv = operands.next("d_kv", Access::kRead, 2);
  const OperandSpec& d_qkv = operands.next_floating("d_qkv", Access::kWrite, 2);
  operands.require(d_q.dtype == d_kv.dtype && d_q.dtype == accumulator_dtype(d_qkv.dtype),
                   "d_q and d_kv must be accumulators of d_qkv");
  operands.require(d_q.shape[0] == d_qkv.shape[0] && d_kv.shape[0] == d_qkv.shape[0] &&
                       d_q.shape[1] + d_kv.shape[1] == d_qkv.shape[1],
                   "a row of d_qkv must be one of d_q and one of d_kv");
  operands.done();
}

void check_zigzag_order(const OpSpec& spec) {
  const auto attributes = attributes_of<ZigzagOrderAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  operands.require(attributes.ranks > 0 && attributes.sequence > 0 && attributes.sequence % 2 == 0,
                   "ranks must be positive, sequence even and positive");
  operands.require(x.shape[0] % (attributes.ranks * attributes.sequence) == 0,
                   "rows must be a multiple of ranks * sequence");
  operands.expect("y", Access::kWrite, x.dtype, x.shape);
  operands.done();
}

void check_split_heads(const OpSpec& spec) {
  const auto a = attributes_of<SplitHeadsAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  operands.require(a.ranks > 0 && a.heads > 0 && a.kv_heads >= 0 && a.heads % a.ranks == 0 &&
                       a.kv_heads % a.ranks == 0,
                   "ranks must divide heads and kv_heads");
  operands.require(a.states.groups >= 0 && a.states.groups % a.ranks == 0 &&
                       (a.states.groups == 0 || (a.states.state > 0 && a.kv_heads == 0)),
                   "ranks must divide groups of heads with states, which have no kv_heads");
  const auto parts = a.parts();
  const int64_t width = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  operands.require(x.shape[1] == (a.inverse ? width / a.ranks : width) &&
                       (!a.inverse || x.shape[0] % a.ranks == 0),
                   "a row of x must hold all heads, or (inverse) one rank's of them");
  const int64_t rows = a.inverse ? x.shape[0] / a.ranks : x.shape[0] * a.ranks;
  operands.expect("y", Access::kWrite, x.dtype, {rows, a.inverse ? width : width / a.ranks});
  operands.done();
}

void check_swap_blocks(const OpSpec& spec) {
  const auto attributes = attributes_of<SwapBlocksAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  operands.require(attributes.outer > 0 && attributes.inner > 0 &&
                       x.shape[0] % (attributes.outer * attributes.inner) == 0,
                   "rows must be a multiple of outer * inner");
  operands.expect("y", Access::kWrite, x.dtype, x.shape);
  operands.done();
}

/// For a permutation: the gradient takes the inverse.
void permuted_backward(BackwardBuilder& builder, const Node& node,
                       std::vector<Attribute> attributes) {
  const std::optional<ValueId> dy = builder.grad_of(node.operands[1]);
  if (!dy) {
    return;
  }
  const ValueId x = node.operands[0];
  const ValueId dx = builder.new_grad(x);
  builder.add_node(node, node.spec.op, std::move(attributes),
                   std::array{Operand{*dy}, Operand{dx, Access::kWrite}}, Phase::kDgrad);
  builder.add_grad(node, x, dx);
}

template <class Attributes>
void inverse_backward(BackwardBuilder& builder, const Node& node) {
  auto attributes = attributes_of<Attributes>(node.spec);
  attributes.inverse = !attributes.inverse;
  permuted_backward(builder, node, to_attributes(attributes));
}

void swap_blocks_backward(BackwardBuilder& builder, const Node& node) {
  const auto attributes = attributes_of<SwapBlocksAttributes>(node.spec);
  permuted_backward(
      builder, node,
      to_attributes(SwapBlocksAttributes{.outer = attributes.inner, .inner = attributes.outer}));
}

bool all_by_row(const OpSpec&, size_t) {
  return true;
}

/// A block of heads has its part of each row.
int64_t blocks_of_heads(const OpSpec& spec, size_t operand) {
  const auto attributes = attributes_of<SplitHeadsAttributes>(spec);
  return attributes.inverse == (operand == 0) ? attributes.ranks : 1;
}

std::vector<int64_t> swapped_blocks(const OpSpec& spec) {
  const auto attributes = attributes_of<SwapBlocksAttributes>(spec);
  std::vector<int64_t> sources;
  for (int64_t inner = 0; inner < attributes.inner; ++inner) {
    for (int64_t outer = 0; outer < attributes.outer; ++outer) {
      sources.push_back(outer * attributes.inner + inner);
    }
  }
  return sources;
}

OpCost pack_kv_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.bytes_read = cost.bytes_written;
  return cost;
}

}  // namespace

const OpDefinition kPackKvOp{
    .name = "pack_kv",
    .summary = "Copies keys and values out of packed qkv rows.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .role = OpRole::kPackKv,
    .check = check_pack_kv,
    .cost = pack_kv_cost,
    .split = kNeverSplit,
    .pieces = {.is_by_row = all_by_row},
};

const OpDefinition kAssembleQkvOp{
    .name = "assemble_qkv",
    .summary = "Packs gradients of queries, and of keys and values, into qkv rows.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_assemble_qkv,
    .cost = elementwise_cost<0>,
    .split = kNeverSplit,
};

const OpDefinition kZigzagOrderOp{
    .name = "zigzag_order",
    .summary = "Rows of gathered sequences, from zig-zag order into that of positions, or back.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_zigzag_order,
    .cost = elementwise_cost<0>,
    .backward = inverse_backward<ZigzagOrderAttributes>,
    .split = kNeverSplit,
};

const OpDefinition kSplitHeadsOp{
    .name = "split_heads",
    .summary = "Cuts rows into blocks of heads, one per rank, or joins them.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .role = OpRole::kSplitHeads,
    .check = check_split_heads,
    .cost = elementwise_cost<0>,
    .backward = inverse_backward<SplitHeadsAttributes>,
    .split = kNeverSplit,
    .pieces = {.is_by_row = all_by_row, .row_blocks = blocks_of_heads},
};

const OpDefinition kSwapBlocksOp{
    .name = "swap_blocks",
    .summary = "Transposes a matrix of blocks of rows.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .role = OpRole::kSwapBlocks,
    .check = check_swap_blocks,
    .cost = elementwise_cost<0>,
    .backward = swap_blocks_backward,
    .split = kNeverSplit,
    .pieces = {.block_sources = swapped_blocks},
};

ValueId zigzag_order(GraphBuilder& builder, ValueId x, const ZigzagOrderAttributes& attributes,
                     std::string_view site) {
  const Value input = builder.value(x);
  const ValueId y = builder.add_activation(site, input.dtype, input.shape);
  builder.add_node("zigzag_order", to_attributes(attributes),
                   std::array{Operand{x}, Operand{y, Access::kWrite}}, site);
  return y;
}

ValueId split_heads(GraphBuilder& builder, ValueId x, const SplitHeadsAttributes& attributes,
                    std::string_view site) {
  const Value input = builder.value(x);
  const int64_t ranks = attributes.ranks;
  const Shape shape = attributes.inverse ? Shape{input.shape[0] / ranks, input.shape[1] * ranks}
                                         : Shape{input.shape[0] * ranks, input.shape[1] / ranks};
  const ValueId y = builder.add_activation(site, input.dtype, shape);
  builder.add_node("split_heads", to_attributes(attributes),
                   std::array{Operand{x}, Operand{y, Access::kWrite}}, site);
  return y;
}

ValueId swap_blocks(GraphBuilder& builder, ValueId x, const SwapBlocksAttributes& attributes,
                    std::string_view site) {
  if (attributes.outer == 1 || attributes.inner == 1) {
    return x;
  }
  const Value input = builder.value(x);
  const ValueId y = builder.add_activation(site, input.dtype, input.shape);
  builder.add_node("swap_blocks", to_attributes(attributes),
                   std::array{Operand{x}, Operand{y, Access::kWrite}}, site);
  return y;
}

}  // namespace braid
