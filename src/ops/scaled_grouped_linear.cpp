#include "ops/scaled_grouped_linear.h"

#include <fmt/core.h>

#include <string>

#include "ops/attributes.h"
#include "ops/expert_offsets.h"
#include "ops/operand_checker.h"
#include "ops/quantize_grouped.h"

namespace braid {
namespace {

constexpr int64_t kBlock = GroupedColumns::kBlock;
constexpr size_t kOffsets = 4;

/// Checks a matrix [rows, depth] and its scales, and returns its shape.
Shape next_factor(OperandChecker& operands, const std::string& name, bool is_weight) {
  const ScaleLayout scales{.block = kBlock, .square = is_weight};
  const OperandSpec& data = operands.next_floating(name, Access::kRead, 2);
  operands.require(is_fp8(data.dtype), fmt::format("{} must be f8e4m3 or f8e5m2", name));
  operands.expect(name + "_scales", Access::kRead, scales.dtype(), scales.shape(data.shape));
  return data.shape;
}

void require_formats(const OperandChecker& operands, const OpSpec& spec) {
  operands.require(
      spec.operands[0].dtype != DType::kF8E5M2 || spec.operands[2].dtype != DType::kF8E5M2,
      "at most one factor may be f8e5m2");
}

/// The part of one expert of a size of all.
int64_t part_of(const OperandChecker& operands, int64_t size, int64_t experts) {
  operands.require(size % (experts * kBlock) == 0,
                   "each expert must have a multiple of 128 features");
  return size / experts;
}

void expect_result(OperandChecker& operands, const OpSpec& spec, const char* name,
                   const Shape& shape) {
  const DType dtype = spec.operands.back().dtype;
  operands.require(dtype == DType::kF32 || dtype == DType::kBF16,
                   fmt::format("{} must be f32 or bf16", name));
  operands.expect(name, Access::kWrite, dtype, shape);
}

void check_linear(const OpSpec& spec) {
  static_cast<void>(attributes_of<ScaledGroupedLinearAttributes>(spec));
  OperandChecker operands(spec);
  const Shape x = next_factor(operands, "x", /*is_weight=*/false);
  const Shape w = next_factor(operands, "w", /*is_weight=*/true);
  require_formats(operands, spec);
  operands.require(x[1] == w[1] && x[1] % kBlock == 0,
                   "x and w must agree in K, a multiple of 128");
  const int64_t out = part_of(operands, w[0], next_offsets(operands));
  expect_result(operands, spec, "y", {x[0], out});
  operands.done();
}

void check_dgrad(const OpSpec& spec) {
  static_cast<void>(attributes_of<ScaledGroupedLinearAttributes>(spec));
  OperandChecker operands(spec);
  const Shape dy = next_factor(operands, "dy", /*is_weight=*/false);
  const Shape w = next_factor(operands, "w", /*is_weight=*/true);
  require_formats(operands, spec);
  const int64_t out = part_of(operands, w[1], next_offsets(operands));
  operands.require(dy[1] == out && w[0] % kBlock == 0,
                   "w must be [K,E M] of dy's M, and K a multiple of 128");
  expect_result(operands, spec, "dx", {dy[0], w[0]});
  operands.done();
}

void check_wgrad(const OpSpec& spec) {
  const auto attributes = attributes_of<ScaledGroupedWgradAttributes>(spec);
  OperandChecker operands(spec);
  const Shape x = next_factor(operands, "x", /*is_weight=*/false);
  const Shape dy = next_factor(operands, "dy", /*is_weight=*/false);
  require_formats(operands, spec);
  const int64_t experts = next_offsets(operands);
  operands.require(x[1] == dy[1] && x[1] == GroupedColumns::width(attributes.rows, experts),
                   "x and dy must have the columns of so many rows and experts");
  operands.require(x[0] % kBlock == 0 && dy[0] % kBlock == 0, "K and M must be multiples of 128");
  operands.expect_main_grad("dw", accumulate_access(attributes.accumulate), DType::kBF16,
                            {experts * dy[0], x[0]});
  operands.done();
}

int64_t num_experts(const OpSpec& spec) {
  return spec.operands[kOffsets].shape[0] - 1;
}

GemmShape linear_shape(const OpSpec& spec) {
  const Shape& x = spec.operands[0].shape;
  return {.rows = x[0],
          .columns = spec.operands.back().shape[1],
          .depth = x[1],
          .dtype = spec.operands[0].dtype,
          .scales = FactorScales::kSquares,
          .groups = num_experts(spec)};
}

GemmShape wgrad_shape(const OpSpec& spec) {
  return {.rows = spec.operands[2].shape[0],
          .columns = spec.operands[0].shape[0],
          .depth = attributes_of<ScaledGroupedWgradAttributes>(spec).rows,
          .dtype = spec.operands[0].dtype,
          .scales = FactorScales::kRuns,
          .groups = num_experts(spec),
          .grouped = GroupedSize::kDepth};
}

template <GemmShape (*kShape)(const OpSpec&)>
IntegerNeed offset_needs(const OpSpec& spec, size_t /*operand*/) {
  const GemmShape shape = kShape(spec);
  return {.rule = IntegerRule::kOffsets,
          .limit = shape.grouped == GroupedSize::kRows ? shape.rows : shape.depth};
}

}  // namespace

bool is_scaled_grouped_product(const OpSpec& spec) {
  return spec.op == kScaledGroupedLinearOp.name || spec.op == kScaledGroupedLinearDgradOp.name ||
         spec.op == kScaledGroupedLinearWgradOp.name;
}

OpSpec scaled_grouped_with_rows(const OpSpec& spec, int64_t rows) {
  OpSpec changed = spec;
  const auto set_factor = [&](size_t operand, const Shape& shape) {
    changed.operands[operand].shape = shape;
    changed.operands[operand + 1].shape = ScaleLayout{.block = kBlock}.shape(shape);
  };
  if (spec.op != kScaledGroupedLinearWgradOp.name) {
    set_factor(0, {rows, spec.operands[0].shape[1]});
    changed.operands.back().shape = {rows, spec.operands.back().shape[1]};
    return changed;
  }
  auto attributes = attributes_of<ScaledGroupedWgradAttributes>(spec);
  attributes.rows = rows;
  changed.attributes = to_attributes(attributes);
  const int64_t width = GroupedColumns::width(rows, num_experts(spec));
  for (const size_t factor : {size_t{0}, size_t{2}}) {
    set_factor(factor, {spec.operands[factor].shape[0], width});
  }
  return changed;
}

const OpDefinition kScaledGroupedLinearOp{
    .name = "scaled_grouped_linear",
    .summary = "y = x w_e^T for the rows of each expert, of FP8 factors with scales.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .check = check_linear,
    .cost = grouped_cost<linear_shape>,
    .gemm_shape = linear_shape,
    .split = kNeverSplit,
    .integers = offset_needs<linear_shape>,
};

const OpDefinition kScaledGroupedLinearDgradOp{
    .name = "scaled_grouped_linear_dgrad",
    .summary = "dx = dy w_e for the rows of each expert, of FP8 factors with scales.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .check = check_dgrad,
    .cost = grouped_cost<linear_shape>,
    .gemm_shape = linear_shape,
    .split = kNeverSplit,
    .integers = offset_needs<linear_shape>,
};

const OpDefinition kScaledGroupedLinearWgradOp{
    .name = "scaled_grouped_linear_wgrad",
    .summary =
        "dw_e += dy^T x over the rows of each expert, of FP8 factors with scales, into the main "
        "grad.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .check = check_wgrad,
    .cost = grouped_cost<wgrad_shape>,
    .narrow_main_grads = true,
    .gemm_shape = wgrad_shape,
    .split = kNeverSplit,
    .integers = offset_needs<wgrad_shape>,
};

}  // namespace braid
