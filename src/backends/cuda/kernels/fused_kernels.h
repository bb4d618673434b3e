#pragma once

#include <cstdint>

#include "ir/op_spec.h"

/// Which products have the SwiGLU beside them in their kernel. Knows nothing of CUDA, so that
/// memory can be counted before there is a device.
namespace braid {

/// What copies of tiles ask of a row of sm90_products.h: whole pieces of 16 bytes.
constexpr bool is_whole_vectors(int64_t bf16_elems) {
  return bf16_elems % 8 == 0;
}

/// Whether this build has kernels (scripts/build_sm90_kernels.sh makes them) that do all of a
/// linear_swiglu or a linear_dgrad_swiglu_backward: its operands are bf16, and their rows whole
/// vectors.
bool has_fused_kernels(const OpSpec& spec);

}  // namespace braid
