#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <span>

#include "ir/op_spec.h"

namespace braid {

class CudaContext;

/// Arguments of a kernel for one task. Operand pointers are device pointers in the order of the
/// spec's operands.
struct CudaKernelArgs {
  std::span<std::byte* const> operands;
  std::byte* scratch = nullptr;  ///< CudaKernel::scratch_bytes, 256-byte aligned, content undefined
  cudaStream_t stream = nullptr;

  template <class T>
  T* data(size_t operand) const {
    return reinterpret_cast<T*>(operands[operand]);
  }
};

/// A kernel made for one spec: `launch` already contains attributes, shapes, plans and chosen
/// algorithms. It only enqueues work on the stream: it allocates nothing, never synchronizes and
/// may be captured into a graph.
struct CudaKernel {
  std::function<void(const CudaKernelArgs&)> launch;
  size_t scratch_bytes = 0;
};

/// The CUDA kernel of a compute spec. bf16 operands with fp32 arithmetic; main grads, statistics
/// and optimizer state fp32; f32 operands if the op allows them. Throws InternalError if there is
/// no kernel for the op or its dtypes.
CudaKernel make_cuda_kernel(const OpSpec& spec, CudaContext& context);

/// The same for steps that need not be bitwise repeatable: the kernel may add in any order.
CudaKernel make_fastest_cuda_kernel(const OpSpec& spec, CudaContext& context);

}  // namespace braid
