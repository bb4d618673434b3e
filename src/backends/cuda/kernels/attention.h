#pragma once

#include "backends/cuda/kernel.h"
#include "backends/cuda/kernels/attention_calls.h"

namespace braid {

/// The forward by a given method, which may differ from `attention_method`.
CudaKernel make_cuda_attention(const OpSpec& spec, CudaContext& context, AttentionMethod method);

CudaKernel make_cuda_attention_backward(const OpSpec& spec, CudaContext& context,
                                        const AttentionBackwardOptions& options);
CudaKernel make_cuda_attention_step_backward(const OpSpec& spec, CudaContext& context,
                                             const AttentionBackwardOptions& options);

}  // namespace braid
