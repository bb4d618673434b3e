#include "ops/transpose_grouped.h"

#include "ops/attributes.h"
#include "ops/expert_offsets.h"
#include "ops/operand_checker.h"
#include "ops/quantize.h"
#include "ops/quantize_grouped.h"

namespace braid {
namespace {

Shape column_shape(const Shape& x, int64_t experts) {
  return {x[1], GroupedColumns::width(x[0], experts)};
}

void check_transpose_grouped(const OpSpec& spec) {
  const auto attributes = attributes_of<TransposeGroupedAttributes>(spec);
  const ScaleLayout scales = QuantizeGroupedAttributes::scales();
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  operands.require(is_fp8(x.dtype), "x must be f8e4m3 or f8e5m2");
  operands.require(x.shape[1] % GroupedColumns::kBlock == 0, "x must have whole blocks of 128");
  operands.expect("x_scales", Access::kRead, scales.dtype(), scales_beside_rows(x.shape));
  const int64_t experts = next_offsets(operands);
  operands.expect("row_scales", Access::kWrite, scales.dtype(), scales.shape(x.shape));
  operands.require(attributes.column || !attributes.watch.watch,
                   "without a copy by columns nothing is counted");
  if (attributes.column) {
    const Shape column = column_shape(x.shape, experts);
    operands.expect("column", Access::kWrite, x.dtype, column);
    operands.expect("column_scales", Access::kWrite, scales.dtype(), scales.shape(column));
  }
  if (attributes.watch.watch) {
    const OperandSpec tally = tally_spec(Fp8Tally::kSize);
    operands.expect("tally", tally.access, tally.dtype, tally.shape);
  }
  operands.done();
}

/// Only scales are read where nothing else is made of the rows.
OpCost transpose_grouped_cost(const OpSpec& spec) {
  OpCost cost = elementwise_cost<4>(spec);
  if (!attributes_of<TransposeGroupedAttributes>(spec).column) {
    cost.flops = 0;
    cost.bytes_read -= size_bytes(spec.operands[0]);
  }
  return cost;
}

}  // namespace

OpSpec transpose_grouped_with_rows(const OpSpec& spec, int64_t rows) {
  const ScaleLayout scales = QuantizeGroupedAttributes::scales();
  OpSpec changed = spec;
  const Shape x{rows, spec.operands[0].shape[1]};
  changed.operands[0].shape = x;
  changed.operands[1].shape = scales_beside_rows(x);
  changed.operands[3].shape = scales.shape(x);
  if (attributes_of<TransposeGroupedAttributes>(spec).column) {
    const Shape column = column_shape(x, spec.operands[2].shape[0] - 1);
    changed.operands[4].shape = column;
    changed.operands[5].shape = scales.shape(column);
  }
  return changed;
}

// `recompute` is the default: copies by columns, which the backward keeps, take as much memory as
// the rows, so making them again would save nothing.
const OpDefinition kTransposeGroupedOp{
    .name = "transpose_grouped",
    .summary = "FP8 copies by columns of rows of experts that came as FP8, and scales of both.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_transpose_grouped,
    .cost = transpose_grouped_cost,
    .split = kNeverSplit,
    .integers = offsets_into_rows,
    .tally = TallyKind::kFp8Losses,
};

}  // namespace braid
