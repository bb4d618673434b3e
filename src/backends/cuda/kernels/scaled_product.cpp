#include "backends/cuda/kernels/scaled_product.h"

#include "backends/cuda/kernels/scratch_sizes.h"
#include "base/dtype.h"

namespace braid {
namespace {

size_t widened_bytes(const OperandSpec& factor) {
  return product_in_scratch_bytes(factor.shape[0], factor.shape[1], dtype_bytes(DType::kBF16));
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

}  // namespace braid
