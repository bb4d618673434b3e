#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/kernel.h"

namespace braid {

/// How the backward of attention runs; the defaults are what `make_cuda_kernel` uses, the rest is
/// for measurements.
struct AttentionBackwardOptions {
  /// Bitwise repeatable. cuDNN 9.19 then keeps d_scores of a whole call in memory (2 bytes per pair
  /// of query and key, the hidden ones too) instead of adding to d_query with atomics.
  bool repeatable = true;
  /// Heads and sequences are processed in as many calls as it takes to keep d_scores of one call
  /// below this.
  int64_t max_d_scores_bytes = int64_t{4} << 30;
};

CudaKernel make_cuda_attention_backward(const OpSpec& spec, CudaContext& context,
                                        const AttentionBackwardOptions& options);

}  // namespace braid
