#pragma once

#include <cstddef>

#include "ir/op_spec.h"
#include "ops/mamba2.h"

namespace braid {

/// Where the buffers between the CUDA kernels of cached_mamba2 begin. Independent of CUDA, so that
/// memory can be counted without a device.
struct CachedMamba2Scratch {
  size_t xbc = 0;  ///< f32 [rows, convolved]
  size_t y = 0;    ///< [rows, inner] of the data's dtype
  size_t bytes = 0;

  CachedMamba2Scratch(const OpSpec& spec, const Mamba2Attributes& a) {
    constexpr size_t kAlignment = 256;
    const auto rows = static_cast<size_t>(spec.operands.at(0).shape[0]);
    const size_t xbc_bytes = rows * static_cast<size_t>(a.convolved()) * sizeof(float);
    y = (xbc_bytes + kAlignment - 1) / kAlignment * kAlignment;
    bytes = y + rows * static_cast<size_t>(a.inner()) * dtype_bytes(spec.operands[0].dtype);
  }
};

}  // namespace braid
