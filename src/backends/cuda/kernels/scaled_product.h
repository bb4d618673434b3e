#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/architecture.h"
#include "ir/op_spec.h"

/// How products of FP8 factors (ops/scaled_linear.h, ops/scaled_grouped_linear.h) are computed.
/// Independent of CUDA, so that memory can be counted without a device.
namespace braid {

/// Whether cuBLASLt multiplies the FP8 elements on GPUs of a capability (architecture.h): not
/// with scales for 32 elements, and only if the depth is a multiple of 16 and the rows of both
/// factors are multiples of 8.
bool multiplies_fp8(const OpSpec& spec, int64_t block, int capability = gpu_capability());

/// Otherwise both factors are converted to bf16 in scratch, and then multiplied. An element times
/// its power of two is exact in bf16, unless it is below 2^-126, where bf16 loses bits.
struct WidenedFactors {
  size_t second_at = 0;  ///< of operands 0 and 2
  size_t bytes = 0;      ///< the product's scratch follows; 0: there are none

  WidenedFactors(const OpSpec& spec, int64_t block);
};

/// Whether products of experts multiply FP8 elements on GPUs of a capability
/// (scaled_grouped_sm90.h): on Hopper, f8e4m3, and where tokens divide the rows, a multiple of 4 of
/// them.
bool multiplies_grouped_fp8(const OpSpec& spec, int capability = gpu_capability());

/// Otherwise both factors are converted to bf16 in scratch, and then multiplied.
struct WidenedGroupedProduct {
  OpSpec product;        ///< of the converted factors, of ops/grouped_linear.h
  size_t second_at = 0;  ///< of its operands 0 and 1
  size_t bytes = 0;      ///< the product's scratch follows

  explicit WidenedGroupedProduct(const OpSpec& spec);
};

}  // namespace braid
