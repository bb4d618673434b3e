#include "backends/cuda/kernels/scaled_product.h"

#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/kernels/scratch_sizes.h"
#include "base/dtype.h"
#include "ops/attributes.h"
#include "ops/grouped_linear.h"
#include "ops/scaled_grouped_linear.h"

namespace braid {
namespace {

size_t widened_bytes(const OperandSpec& factor) {
  return product_in_scratch_bytes(factor.shape[0], factor.shape[1], dtype_bytes(DType::kBF16));
}

/// The rows of a transposed copy.
Shape transposed(const Shape& shape) {
  return {shape[1], shape[0]};
}

OpSpec widened_product(const OpSpec& spec) {
  const Shape& first = spec.operands[0].shape;
  const Shape& second = spec.operands[2].shape;
  const auto in_bf16 = [](const Shape& shape) {
    return OperandSpec{.dtype = DType::kBF16, .access = Access::kRead, .shape = shape};
  };
  const auto product = [&](const OpDefinition& op, std::vector<Attribute> attributes,
                           const Shape& a, const Shape& b) {
    return OpSpec{std::string(op.name),
                  std::move(attributes),
                  {in_bf16(a), in_bf16(b), spec.operands[4], spec.operands[5]}};
  };
  if (spec.op == kScaledGroupedLinearOp.name) {
    return product(kGroupedLinearOp, {}, first, second);
  }
  if (spec.op == kScaledGroupedLinearDgradOp.name) {
    return product(kGroupedLinearDgradOp, {}, first, transposed(second));
  }
  const auto attributes = attributes_of<ScaledGroupedWgradAttributes>(spec);
  return product(kGroupedLinearWgradOp,
                 to_attributes(GroupedWgradAttributes{.accumulate = attributes.accumulate}),
                 {attributes.rows, first[0]}, {attributes.rows, second[0]});
}

}  // namespace

bool multiplies_fp8(const OpSpec& spec, int64_t block, int capability) {
  const Shape& first = spec.operands[0].shape;
  const Shape& second = spec.operands[2].shape;
  const bool has_scales = block == 0     ? multiplies_fp8_with_one_scale(capability)
                          : block == 128 ? multiplies_fp8_with_blocks(capability)
                                         : false;
  return has_scales && first[0] % 8 == 0 && second[0] % 8 == 0 && first[1] % 16 == 0;
}

WidenedFactors::WidenedFactors(const OpSpec& spec, int64_t block) {
  if (!multiplies_fp8(spec, block)) {
    second_at = widened_bytes(spec.operands[0]);
    bytes = second_at + widened_bytes(spec.operands[2]);
  }
}

bool multiplies_grouped_fp8(const OpSpec& spec, int capability) {
  const bool is_e4m3 =
      spec.operands[0].dtype == DType::kF8E4M3 && spec.operands[2].dtype == DType::kF8E4M3;
  // Scales of rows lie [blocks, rows]; hardware copies rows of whole 16 bytes.
  const bool has_whole_rows =
      spec.op == kScaledGroupedLinearWgradOp.name || spec.operands[0].shape[0] % 4 == 0;
  return runs_hopper_kernels(capability) && is_e4m3 && has_whole_rows;
}

WidenedGroupedProduct::WidenedGroupedProduct(const OpSpec& spec)
    : product(widened_product(spec)),
      second_at(widened_bytes(product.operands[0])),
      bytes(second_at + widened_bytes(product.operands[1])) {}

}  // namespace braid
