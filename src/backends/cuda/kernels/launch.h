#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "backends/cuda/kernel.h"
#include "base/dtype.h"
#include "base/errors.h"

/// Shared parts of the launchers of memory-bound kernels.
namespace braid {

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Whether all pointers are multiples of `bytes`.
inline bool all_aligned(size_t bytes, std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), [bytes](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
  });
}

/// Blocks of a one-dimensional grid.
inline unsigned grid_of(int64_t blocks) {
  check(blocks <= std::numeric_limits<int32_t>::max(), "a grid of {} blocks", blocks);
  return static_cast<unsigned>(blocks);
}

/// The division of a row of `vectors` vectors among blocks, one block per piece of a row: every
/// thread takes `kUnroll` vectors at a distance of `threads`, so that as many loads are in flight.
/// Grid: rows * chunks blocks.
struct RowChunks {
  unsigned chunks = 1;    // pieces of a row
  unsigned threads = 32;  // per block, whole warps

  RowChunks(int64_t vectors, int unroll, int max_threads = 256) {
    chunks = grid_of(std::max<int64_t>(1, ceil_div(vectors, int64_t{unroll} * max_threads)));
    const int64_t per_thread = int64_t{chunks} * unroll * 32;
    threads = static_cast<unsigned>(std::max<int64_t>(1, ceil_div(vectors, per_thread)) * 32);
  }
};

/// Returns make.template operator()<T>() for the storage type T (float or __nv_bfloat16) of one
/// operand of the spec.
template <class Make>
CudaKernel dispatch_cuda_dtype(const OpSpec& spec, size_t operand, const Make& make) {
  switch (spec.operands.at(operand).dtype) {
    case DType::kF32:
      return make.template operator()<float>();
    case DType::kBF16:
      return make.template operator()<__nv_bfloat16>();
    default:
      throw_internal_error("op {}: no CUDA kernel for {}", spec.op,
                           dtype_name(spec.operands[operand].dtype));
  }
}

/// make.template operator()<Grad>() for the gradient of an optimizer's op, operand 0: float or
/// __nv_bfloat16.
template <class Make>
CudaKernel dispatch_cuda_gradient(const OpSpec& spec, const Make& make) {
  return dispatch_cuda_dtype(spec, 0, make);
}

}  // namespace braid
