#include "ops/quantize.h"

#include <fmt/core.h>

#include <string>

#include "ops/attributes.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

constexpr int64_t kSquareAlignment = 4;

int64_t blocks_of(int64_t elems, int64_t block) {
  return (elems + block - 1) / block;
}

/// One copy of x and its scales.
void expect_copy(OperandChecker& operands, const std::string& name, const Shape& shape,
                 const ScaleLayout& scales) {
  const OperandSpec& copy = operands.next_floating(name, Access::kWrite, 2);
  operands.require(copy.shape == shape && is_fp8(copy.dtype),
                   fmt::format("{} must be f8e4m3 or f8e5m2 {}", name, to_string(shape)));
  operands.expect(name + "_scales", Access::kWrite, scales.dtype(), scales.shape(shape));
}

void check_quantize(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  operands.require(x.dtype == DType::kF32 || x.dtype == DType::kBF16, "x must be f32 or bf16");
  operands.require(attributes.row || attributes.column, "there is no copy to write");
  operands.require(attributes.block == 0 || attributes.block == 32 || attributes.block == 128,
                   "block must be 0, 32 or 128");
  operands.require(!attributes.square || attributes.block == 128, "only blocks of 128 are square");
  const ScaleLayout scales = attributes.scales();
  if (attributes.row) {
    expect_copy(operands, "row", x.shape, scales);
  }
  if (attributes.column) {
    expect_copy(operands, "column", {x.shape[1], x.shape[0]}, scales);
  }
  if (attributes.has_bias) {
    operands.expect("db", accumulate_access(attributes.accumulate), DType::kF32, {x.shape[1]});
  }
  if (attributes.watch.watch) {
    const OperandSpec tally = tally_spec(Fp8Tally::kSize);
    operands.expect("tally", tally.access, tally.dtype, tally.shape);
  }
  operands.done();
}

}  // namespace

Shape ScaleLayout::shape(const Shape& data) const {
  if (block == 0) {
    return {1};
  }
  const int64_t along = blocks_of(data[1], block);
  if (!square) {
    return {along, data[0]};
  }
  return {blocks_of(data[0], block), blocks_of(along, kSquareAlignment) * kSquareAlignment};
}

QuantizeOperands::QuantizeOperands(const QuantizeAttributes& attributes) {
  int next = 1;
  if (attributes.row) {
    row = next;
    next += 2;
  }
  if (attributes.column) {
    column = next;
    next += 2;
  }
  if (attributes.has_bias) {
    db = next++;
  }
  if (attributes.watch.watch) {
    tally = next;
  }
}

std::string_view watched_factor(const OpSpec& spec, Phase phase) {
  if (spec.op != kQuantizeOp.name) {
    return "w";
  }
  return phase == Phase::kForward ? "x" : "dy";
}

const OpDefinition kQuantizeOp{
    .name = "quantize",
    .summary = "FP8 copies of x by rows and by columns, with their scales.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_quantize,
    .cost = elementwise_cost<4>,
    .recompute = Recompute::kNorms,
    .split = kNeverSplit,
    .tally = TallyKind::kFp8Losses,
};

const OpDefinition kQuantizeWeightOp{
    .name = "quantize_weight",
    .summary = "FP8 copies of a weight by rows and by columns, with their scales.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_quantize,
    .cost = elementwise_cost<4>,
    .recompute = Recompute::kNone,
    .split = kNeverSplit,
    .tally = TallyKind::kFp8Losses,
};

}  // namespace braid
