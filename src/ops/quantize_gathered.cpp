#include "ops/quantize_gathered.h"

#include "ops/attributes.h"
#include "ops/expert_offsets.h"
#include "ops/operand_checker.h"
#include "ops/quantize.h"
#include "ops/quantize_grouped.h"

namespace braid {
namespace {

void check_quantize_gathered(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizeGatheredAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  operands.require(x.dtype == DType::kF32 || x.dtype == DType::kBF16, "x must be f32 or bf16");
  operands.require(x.shape[1] % GroupedColumns::kBlock == 0, "x must have whole blocks of 128");
  const OperandSpec& pair_of = operands.next("pair_of", Access::kRead, 1);
  const OperandSpec& row_of = operands.next("row_of", Access::kRead, 2);
  operands.require(pair_of.dtype == DType::kI32 && row_of.dtype == DType::kI32,
                   "indices must be i32");
  const bool is_partial = attributes.partial.are_partial();
  operands.require(
      row_of.shape[0] == x.shape[0] && (is_partial || row_of.shape.num_elems() == pair_of.shape[0]),
      "row_of must be [T,K], and pair_of [T K], of x's T rows");
  operands.require(
      attributes.partial.expected_rows >= 0 && attributes.partial.expected_rows <= pair_of.shape[0],
      "expected_rows must be at most the rows");
  operands.require(!is_partial || !attributes.dropped.drops,
                   "partial maps say themselves which rows are dropped");
  if (attributes.dropped.drops) {
    next_offsets(operands);
  }
  const Shape rows{pair_of.shape[0], x.shape[1]};
  const OperandSpec& y = operands.next_floating("y", Access::kWrite, 2);
  operands.require(y.shape == rows && is_fp8(y.dtype),
                   fmt::format("y must be f8e4m3 or f8e5m2 {}", to_string(rows)));
  operands.expect("y_scales", Access::kWrite, DType::kF32, scales_beside_rows(rows));
  if (attributes.watch.watch) {
    const OperandSpec tally = tally_spec(Fp8Tally::kSize);
    operands.expect("tally", tally.access, tally.dtype, tally.shape);
  }
  operands.done();
}

/// The kernel reads one of the two maps. Of partial ones the expected rows are rounded.
OpCost quantize_gathered_cost(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizeGatheredAttributes>(spec);
  OpSpec priced = spec;
  if (attributes.partial.are_partial()) {
    const auto y = static_cast<size_t>(QuantizeGatheredOperands(attributes).y);
    priced.operands[y].shape[0] = attributes.partial.expected_rows;
    priced.operands[y + 1].shape[0] = attributes.partial.expected_rows;
  }
  OpCost cost = elementwise_cost<4>(priced);
  cost.bytes_read -= size_bytes(spec.operands[2]);
  return cost;
}

IntegerNeed map_needs(const OpSpec& spec, size_t operand) {
  if (attributes_of<QuantizeGatheredAttributes>(spec).partial.are_partial()) {
    const size_t other = operand == 1 ? 2 : 1;
    return {.rule = IntegerRule::kPartialMap, .limit = spec.operands[other].shape.num_elems()};
  }
  return operand == 3 ? IntegerNeed{.rule = IntegerRule::kOffsets,
                                    .limit = spec.operands[1].shape.num_elems()}
                      : IntegerNeed{.rule = IntegerRule::kPermutation};
}

}  // namespace

QuantizeGatheredOperands::QuantizeGatheredOperands(const QuantizeGatheredAttributes& attributes) {
  if (attributes.dropped.drops) {
    offsets = y++;
  }
  if (attributes.watch.watch) {
    tally = y + 2;
  }
}

const OpDefinition kQuantizeGatheredOp{
    .name = "quantize_gathered",
    .summary = "FP8 copies of the rows of pairs' tokens, in the order of experts, with scales.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_quantize_gathered,
    .cost = quantize_gathered_cost,
    .recompute = Recompute::kNorms,
    .split = kNeverSplit,
    .integers = map_needs,
    .tally = TallyKind::kFp8Losses,
};

}  // namespace braid
