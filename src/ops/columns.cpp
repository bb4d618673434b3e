#include "ops/columns.h"

#include <array>
#include <numeric>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

/// Columns of x and of y, in operations that take.
struct ColumnCounts {
  int64_t all;
  int64_t taken;

  explicit ColumnCounts(const ColumnsAttributes& a)
      : all(a.runs * a.width), taken(a.runs * a.size) {}
};

template <bool kPuts>
void check_columns(const OpSpec& spec) {
  const auto a = attributes_of<ColumnsAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& from = operands.next_floating(kPuts ? "dy" : "x", Access::kRead, 2);
  operands.require(a.runs > 0 && a.size > 0 && a.begin >= 0 && a.begin + a.size <= a.width,
                   "columns [begin, begin + size) must lie in a run of width");
  const ColumnCounts columns(a);
  operands.require(
      from.shape[1] == (kPuts ? columns.taken : columns.all),
      kPuts ? "a row must hold runs * size columns" : "a row must hold runs * width columns");
  operands.expect(kPuts ? "dx" : "y", Access::kWrite, from.dtype,
                  {from.shape[0], kPuts ? columns.all : columns.taken});
  operands.done();
}

/// Of one run, as of the scales that a piece of a product reads: equal blocks, each of columns that
/// lie together.
std::vector<int64_t> taken_blocks(const OpSpec& spec) {
  const auto a = attributes_of<ColumnsAttributes>(spec);
  std::vector<int64_t> sources;
  if (a.runs != 1 || spec.operands[0].dtype != DType::kF32) {
    return sources;  // values of activations, which are cut by rows
  }
  const int64_t block = std::gcd(std::gcd(a.begin, a.size), a.width);
  for (int64_t row = 0; row < spec.operands[0].shape[0]; ++row) {
    for (int64_t at = 0; at < a.size; at += block) {
      sources.push_back((row * a.width + a.begin + at) / block);
    }
  }
  return sources;
}

void take_columns_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> dy = builder.grad_of(node.operands[1]);
  if (!dy) {
    return;
  }
  const ValueId x = node.operands[0];
  const ValueId dx = builder.new_grad(x);
  builder.add_node(node, "put_columns", node.spec.attributes,
                   std::array{Operand{*dy}, Operand{dx, Access::kWrite}}, Phase::kDgrad);
  builder.add_grad(node, x, dx);
}

}  // namespace

const OpDefinition kTakeColumnsOp{
    .name = "take_columns",
    .summary = "The same columns of each run of columns.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_columns<false>,
    .cost = elementwise_cost<0>,
    .backward = take_columns_backward,
    .recompute = Recompute::kNorms,
    .split = kSplitByRows,
    .pieces = {.block_sources = taken_blocks},
};

const OpDefinition kPutColumnsOp{
    .name = "put_columns",
    .summary = "Columns in their place in each run; the others are 0.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_columns<true>,
    .cost = elementwise_cost<0>,
    .split = kSplitByRows,
};

ValueId take_columns(GraphBuilder& builder, ValueId x, const ColumnsAttributes& attributes,
                     std::string_view site) {
  if (attributes.size == attributes.width) {
    return x;
  }
  const Value input = builder.value(x);
  const ValueId y =
      builder.add_activation(site, input.dtype, {input.shape[0], ColumnCounts(attributes).taken});
  builder.add_node("take_columns", to_attributes(attributes),
                   std::array{Operand{x}, Operand{y, Access::kWrite}}, site);
  return y;
}

}  // namespace braid
