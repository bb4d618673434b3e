#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "backends/cuda/kernels/attention_calls.h"

/// Steps before and after the kernel of attention_backward_sm90.h: sums of rows, and the conversion
/// of its fp32 accumulators to the packed rows of d_qkv.
namespace braid {

/// All pointers are multiples of 16 bytes. Row counts are those of `Sm90Scratch`, padded to whole
/// tiles.
struct AttentionPrepareArgs {
  const __nv_bfloat16* out = nullptr;    ///< [B * T, H * D]
  const __nv_bfloat16* d_out = nullptr;  ///< [B * T, H * D]
  const float* lse = nullptr;            ///< [B, H, T]
  float* lse_log2 = nullptr;             ///< [B, H, query_rows]
  float* d_out_out = nullptr;            ///< [B, H, query_rows]
  float* d_query = nullptr;              ///< [B, H, query_rows * D]
  int* semaphores = nullptr;             ///< [B, H, query_rows / query_tile]
};

/// lse_log2 = lse * log2(e), infinite past the sequence so that probabilities there are 0;
/// d_out_out = the sum of d_out * out over a head's elements, 0 past the sequence; d_query and
/// semaphores = 0. Writes all rows of these four arrays. Head sizes 64, 128 and 192.
void attention_prepare(const AttentionSizes& sizes, const AttentionPrepareArgs& args,
                       cudaStream_t stream);

/// Accumulators hold the rows of a head in slabs of 64 rows. In a slab, float 4 * (128 * (c / 8) +
/// t) + e is the element that thread t of a warpgroup holds of columns c..c + 7 after wgmma: row 16
/// * (t / 32) + t % 32 / 4 + 8 * (e / 2), column c + 2 * (t % 4) + e % 2.
struct AttentionFinishArgs {
  const float* d_query = nullptr;  ///< [B, H, query_rows * D]
  const float* d_key = nullptr;    ///< [B, H, key_rows * D], of each query head; H > K only
  const float* d_value = nullptr;  ///< [B, H, key_rows * D], of each query head; H > K only
  __nv_bfloat16* d_qkv = nullptr;  ///< [B * T, (H + 2K) * D], 16-byte aligned
  float scale = 1;                 ///< of the scores
};

/// Writes the query heads of d_qkv = scale * d_query. If query heads share a key/value head (H >
/// K), also writes its key heads = scale * d_key and its value heads = d_value, each summed over
/// the query heads that share it, in fp32 and in order. Otherwise writes the zeros that follow the
/// first `value_size` elements of value heads. Head sizes 64, 128 and 192.
void attention_finish(const AttentionSizes& sizes, const AttentionFinishArgs& args,
                      cudaStream_t stream);

}  // namespace braid
