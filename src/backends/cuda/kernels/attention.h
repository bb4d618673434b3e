#pragma once

#include "backends/cuda/kernel.h"
#include "backends/cuda/kernels/attention_calls.h"

namespace braid {

CudaKernel make_cuda_attention_backward(const OpSpec& spec, CudaContext& context,
                                        const AttentionBackwardOptions& options);

}  // namespace braid
