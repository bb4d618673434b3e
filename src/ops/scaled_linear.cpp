#include "ops/scaled_linear.h"

#include <fmt/core.h>

#include <string>
#include <string_view>

#include "ops/attributes.h"
#include "ops/operand_checker.h"
#include "ops/quantize.h"

namespace braid {
namespace {

/// Checks a matrix [rows, depth] and its scales, and returns its shape.
Shape next_factor(OperandChecker& operands, const std::string& name, const ScaleLayout& scales) {
  const OperandSpec& data = operands.next_floating(name, Access::kRead, 2);
  operands.require(is_fp8(data.dtype), fmt::format("{} must be f8e4m3 or f8e5m2", name));
  operands.expect(name + "_scales", Access::kRead, scales.dtype(), scales.shape(data.shape));
  return data.shape;
}

/// Checks both factors, of these names, and returns [rows, columns] of the product.
Shape next_factors(OperandChecker& operands, const OpSpec& spec, int64_t block, const char* first,
                   const char* second) {
  operands.require(block == 0 || block == 32 || block == 128, "block must be 0, 32 or 128");
  const bool is_weight = std::string_view(second) == "w";
  const Shape a = next_factor(operands, first, {.block = block});
  const Shape b = next_factor(
      operands, second, is_weight ? ScaleLayout::of_weight(block) : ScaleLayout{.block = block});
  operands.require(a[1] == b[1],
                   fmt::format("{} and {} must agree in their last dimension", first, second));
  operands.require(
      spec.operands[0].dtype != DType::kF8E5M2 || spec.operands[2].dtype != DType::kF8E5M2,
      "at most one factor may be f8e5m2");
  return {a[0], b[0]};
}

/// The result of the model's dtype.
void expect_result(OperandChecker& operands, const OpSpec& spec, const char* name,
                   const Shape& shape) {
  const DType dtype = spec.operands.back().dtype;
  operands.require(dtype == DType::kF32 || dtype == DType::kBF16,
                   fmt::format("{} must be f32 or bf16", name));
  operands.expect(name, Access::kWrite, dtype, shape);
}

void check_scaled_linear(const OpSpec& spec) {
  const auto attributes = attributes_of<ScaledLinearAttributes>(spec);
  OperandChecker operands(spec);
  const Shape y = next_factors(operands, spec, attributes.block, "x", "w");
  operands.require(attributes.has_bias || attributes.adds_bias, "there is no bias to leave out");
  if (attributes.has_bias) {
    operands.expect("bias", Access::kRead, spec.operands.back().dtype, {y[1]});
  }
  expect_result(operands, spec, "y", y);
  operands.done();
}

void check_scaled_linear_dgrad(const OpSpec& spec) {
  const auto attributes = attributes_of<ScaledLinearDgradAttributes>(spec);
  OperandChecker operands(spec);
  expect_result(operands, spec, "dx", next_factors(operands, spec, attributes.block, "dy", "w"));
  operands.done();
}

void check_scaled_linear_wgrad(const OpSpec& spec) {
  const auto attributes = attributes_of<ScaledLinearWgradAttributes>(spec);
  OperandChecker operands(spec);
  const Shape shape = next_factors(operands, spec, attributes.block, "x", "dy");
  operands.expect_main_grad("dw", accumulate_access(attributes.accumulate), DType::kBF16,
                            {shape[1], shape[0]});
  operands.done();
}

OpCost scaled_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.flops = 2.0 * elems(spec, 0) * static_cast<double>(spec.operands[2].shape[0]);
  return cost;
}

/// `has_weight`: the second factor is one.
FactorScales scales_of(int64_t block, bool has_weight) {
  switch (block) {
    case 0:
      return FactorScales::kOne;
    case 32:
      return FactorScales::kRunsOf32;
    default:
      return has_weight ? FactorScales::kSquares : FactorScales::kRuns;
  }
}

/// Pieces of a product: rows of the result, and those of the factor that is operand kFactor.
template <size_t kFactor>
struct RowsOf {
  /// Whether the operand is the scales of these rows: a matrix with a column for each. With one
  /// scale for all there are none.
  static bool has_columns(const OpSpec& spec, size_t operand) {
    return operand == kFactor + 1 && scale_block(spec) != 0;
  }
  static bool is_by_row(const OpSpec& spec, size_t operand) {
    return operand == kFactor || operand + 1 == spec.operands.size() || has_columns(spec, operand);
  }
  static bool is_whole(const OpSpec& spec, size_t operand) { return !is_by_row(spec, operand); }

  /// Each row of the matrix of scales has one element of each row of the factor.
  static int64_t num_blocks(const OpSpec& spec, size_t operand) {
    return has_columns(spec, operand) ? spec.operands[operand].shape[0] : 1;
  }

  /// The number of rows, which scales have as their last dimension.
  static void forget(OpSpec& spec) {
    if (has_columns(spec, kFactor + 1)) {
      spec.operands[kFactor + 1].shape[1] = 0;
    }
  }

  /// Whole blocks of scales, and sizes that libraries accept (ops/quantize_products.h). Nothing
  /// takes columns of E8M0.
  static int64_t unit(const OpSpec& spec) {
    const int64_t block = scale_block(spec);
    return block == 32 ? 0 : block == 0 ? 16 : block;
  }

  static constexpr PieceTraits kPieces{
      .is_by_row = is_by_row, .forget_piece = forget, .row_blocks = num_blocks};
};

template <size_t kFactor>
constexpr SplitTraits split_rows_of(SplitDimension dimension) {
  return {.dimension = dimension,
          .keeps_bits = false,  // cuBLASLt chooses an algorithm by the size
          .counted = kFactor,
          .is_whole = RowsOf<kFactor>::is_whole,
          .has_columns = RowsOf<kFactor>::has_columns,
          .unit = RowsOf<kFactor>::unit};
}

template <class Attributes, bool kHasWeight>
GemmShape scaled_shape(const OpSpec& spec) {
  const Shape& result = spec.operands.back().shape;
  return {.rows = result[0],
          .columns = result[1],
          .depth = spec.operands.at(0).shape[1],
          .dtype = spec.operands[0].dtype,
          .scales = scales_of(attributes_of<Attributes>(spec).block, kHasWeight)};
}

}  // namespace

int64_t scale_block(const OpSpec& product) {
  switch (find_op(product.op).role) {
    case OpRole::kScaledProduct:
      return attributes_of<ScaledLinearAttributes>(product).block;
    case OpRole::kScaledProductDgrad:
      return attributes_of<ScaledLinearDgradAttributes>(product).block;
    default:
      return attributes_of<ScaledLinearWgradAttributes>(product).block;
  }
}

const OpDefinition kScaledLinearOp{
    .name = "scaled_linear",
    .summary = "y = x w^T (+ bias) of FP8 factors with scales.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .role = OpRole::kScaledProduct,
    .check = check_scaled_linear,
    .cost = scaled_cost,
    .gemm_shape = scaled_shape<ScaledLinearAttributes, true>,
    .split = split_rows_of<0>(SplitDimension::kRows),
    .pieces = RowsOf<0>::kPieces,
    .added_by_one = "adds_bias",
};

const OpDefinition kScaledLinearDgradOp{
    .name = "scaled_linear_dgrad",
    .summary = "dx = dy w of FP8 factors with scales.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .role = OpRole::kScaledProductDgrad,
    .check = check_scaled_linear_dgrad,
    .cost = scaled_cost,
    .gemm_shape = scaled_shape<ScaledLinearDgradAttributes, true>,
    .split = split_rows_of<0>(SplitDimension::kRows),
    .pieces = RowsOf<0>::kPieces,
};

const OpDefinition kScaledLinearWgradOp{
    .name = "scaled_linear_wgrad",
    .summary = "dw += dy^T x of FP8 factors with scales, into the main grad.",
    .family = OpFamily::kGemm,
    .kind = OpKind::kProduct,
    .role = OpRole::kScaledProductWgrad,
    .check = check_scaled_linear_wgrad,
    .cost = scaled_cost,
    .narrow_main_grads = true,
    .gemm_shape = scaled_shape<ScaledLinearWgradAttributes, false>,
    .split = split_rows_of<2>(SplitDimension::kFeatures),
    .pieces = RowsOf<2>::kPieces,
};

}  // namespace braid
