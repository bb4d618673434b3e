#include "ops/quantize_part.h"

#include "ops/attributes.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

template <class Attributes>
Shape checked_magnitudes(const OperandChecker& operands, const Attributes& attributes) {
  operands.require(attributes.block == 0 || attributes.block == 32 || attributes.block == 128,
                   "block must be 0, 32 or 128");
  operands.require(attributes.rows > 0 && attributes.columns > 0, "the weight has no elements");
  return magnitude_shape(attributes.rows, attributes.columns, attributes.block);
}

/// x, a part of the weight. Returns the number of its elements.
int64_t next_part(OperandChecker& operands, const QuantizePartAttributes& attributes) {
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 1);
  operands.require(x.dtype == DType::kF32 || x.dtype == DType::kBF16, "x must be f32 or bf16");
  operands.require(!attributes.rounds.main_weights || x.dtype == DType::kF32,
                   "main weights must be f32");
  operands.require(attributes.begin >= 0 &&
                       attributes.begin + x.shape[0] <= attributes.rows * attributes.columns,
                   "x must be elements of the weight");
  return x.shape[0];
}

void check_part_magnitudes(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizePartAttributes>(spec);
  OperandChecker operands(spec);
  const Shape magnitudes = checked_magnitudes(operands, attributes);
  next_part(operands, attributes);
  operands.require(!attributes.watch.watch, "magnitudes have no tally");
  operands.expect("magnitudes", Access::kWrite, DType::kI32, magnitudes);
  operands.done();
}

void check_quantize_part(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizePartAttributes>(spec);
  OperandChecker operands(spec);
  const Shape magnitudes = checked_magnitudes(operands, attributes);
  const int64_t count = next_part(operands, attributes);
  operands.expect("magnitudes", Access::kRead, DType::kI32, magnitudes);
  operands.expect("part", Access::kWrite, DType::kF8E4M3, {count});
  if (attributes.watch.watch) {
    const OperandSpec tally = tally_spec(Fp8Tally::kSize);
    operands.expect("tally", tally.access, tally.dtype, tally.shape);
  }
  operands.done();
}

void check_scales_of_magnitudes(const OpSpec& spec) {
  const auto attributes = attributes_of<MagnitudeScalesAttributes>(spec);
  OperandChecker operands(spec);
  const ScaleLayout scales = ScaleLayout::of_weight(attributes.block);
  operands.expect("magnitudes", Access::kRead, DType::kI32,
                  checked_magnitudes(operands, attributes));
  operands.expect("row_scales", Access::kWrite, scales.dtype(),
                  scales.shape({attributes.rows, attributes.columns}));
  if (attributes.has_column) {
    operands.expect("column_scales", Access::kWrite, scales.dtype(),
                    scales.shape({attributes.columns, attributes.rows}));
  }
  operands.done();
}

}  // namespace

Shape magnitude_shape(int64_t rows, int64_t columns, int64_t block) {
  if (block == 0) {
    return {1, 1};
  }
  return {(rows + block - 1) / block, (columns + block - 1) / block};
}

const OpDefinition kPartMagnitudesOp{
    .name = "part_magnitudes",
    .summary = "The largest magnitudes of a part of a weight, by block.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_part_magnitudes,
    .cost = elementwise_cost<1>,
    .kernel_rate = {.part = 0.65},
    .recompute = Recompute::kNone,
    .split = kNeverSplit,
};

const OpDefinition kQuantizePartOp{
    .name = "quantize_part",
    .summary = "The FP8 copy of a part of a weight, whose scales are those of the whole.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_quantize_part,
    .cost = elementwise_cost<2>,
    .kernel_rate = {.part = 0.97},
    .recompute = Recompute::kNone,
    .split = kNeverSplit,
    .tally = TallyKind::kFp8Losses,
};

const OpDefinition kScalesOfMagnitudesOp{
    .name = "scales_of_magnitudes",
    .summary = "The scales of a weight's FP8 copies, from its largest magnitudes.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_scales_of_magnitudes,
    .cost = elementwise_cost<1>,
    .recompute = Recompute::kNone,
    .split = kNeverSplit,
};

}  // namespace braid
