#pragma once

#include <cstdint>

#include "ir/op_spec.h"

/// Determines which products are fused with SwiGLU in one kernel. Independent of CUDA, so that
/// memory can be counted without a device.
namespace braid {

/// The requirement of tile copies on a row of sm90_products.h: a multiple of 16 bytes.
constexpr bool is_whole_vectors(int64_t bf16_elems) {
  return bf16_elems % 8 == 0;
}

/// Whether this build has kernels (scripts/build_sm90_kernels.sh makes them) for the GPUs of this
/// process that compute a whole fused product (ops/linear_swiglu.h): its matrices are bf16, and
/// their rows whole vectors.
bool has_fused_kernels(const OpSpec& spec);

}  // namespace braid
