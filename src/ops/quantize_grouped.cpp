#include "ops/quantize_grouped.h"

#include <fmt/core.h>

#include <string>

#include "ops/attributes.h"
#include "ops/expert_offsets.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

/// One copy and its scales.
void expect_copy(OperandChecker& operands, const std::string& name, const Shape& shape) {
  const ScaleLayout scales = QuantizeGroupedAttributes::scales();
  const OperandSpec& copy = operands.next_floating(name, Access::kWrite, 2);
  operands.require(copy.shape == shape && is_fp8(copy.dtype),
                   fmt::format("{} must be f8e4m3 or f8e5m2 {}", name, to_string(shape)));
  operands.expect(name + "_scales", Access::kWrite, scales.dtype(), scales.shape(shape));
}

void check_quantize_grouped(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizeGroupedAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  operands.require(x.dtype == DType::kF32 || x.dtype == DType::kBF16, "x must be f32 or bf16");
  const int64_t experts = next_offsets(operands);
  operands.require(attributes.row || attributes.column, "there is no copy to write");
  if (attributes.row) {
    expect_copy(operands, "row", x.shape);
  }
  if (attributes.column) {
    expect_copy(operands, "column", {x.shape[1], GroupedColumns::width(x.shape[0], experts)});
  }
  if (attributes.watch.watch) {
    const OperandSpec tally = tally_spec(Fp8Tally::kSize);
    operands.expect("tally", tally.access, tally.dtype, tally.shape);
  }
  operands.done();
}

}  // namespace

QuantizeGroupedOperands::QuantizeGroupedOperands(const QuantizeGroupedAttributes& attributes) {
  int next = 2;
  if (attributes.row) {
    row = next;
    next += 2;
  }
  if (attributes.column) {
    column = next;
    next += 2;
  }
  if (attributes.watch.watch) {
    tally = next;
  }
}

Shape scales_beside_rows(const Shape& rows) {
  return {rows[0], rows[1] / GroupedColumns::kBlock};
}

OpSpec quantize_grouped_with_rows(const OpSpec& spec, int64_t rows) {
  const QuantizeGroupedOperands at(attributes_of<QuantizeGroupedAttributes>(spec));
  const ScaleLayout scales = QuantizeGroupedAttributes::scales();
  const int64_t columns = spec.operands[0].shape[1];
  OpSpec changed = spec;
  const auto set_copy = [&](int operand, const Shape& shape) {
    if (operand >= 0) {
      changed.operands[static_cast<size_t>(operand)].shape = shape;
      changed.operands[static_cast<size_t>(operand) + 1].shape = scales.shape(shape);
    }
  };
  changed.operands[0].shape = {rows, columns};
  set_copy(at.row, {rows, columns});
  set_copy(at.column, {columns, GroupedColumns::width(rows, spec.operands[1].shape[0] - 1)});
  return changed;
}

const OpDefinition kQuantizeGroupedOp{
    .name = "quantize_grouped",
    .summary =
        "FP8 copies of rows of experts, by rows and by columns, with scales for each expert's own.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_quantize_grouped,
    .cost = elementwise_cost<4>,
    .recompute = Recompute::kNorms,
    .split = kNeverSplit,
    .integers = offsets_into_rows,
    .tally = TallyKind::kFp8Losses,
};

}  // namespace braid
