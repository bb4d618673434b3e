#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "backends/cuda/kernels/attention_calls.h"
#include "ir/op_spec.h"

namespace braid {

class CudaContext;

/// Strides between the rows of a tensor of heads, in elements; the heads of a row are contiguous.
struct HeadRows {
  int64_t row = 0;       ///< from one token to the next
  int64_t sequence = 0;  ///< from the first token of a sequence to that of the next
};

/// Fused attention, softmax(scale * q k^T) v, of some queries and keys of each sequence. bf16, with
/// a log-sum-exp of the scaled scores in f32, which cuDNN calls statistics: max + ln(sum(exp(score
/// - max))).
struct AttentionProblem {
  AttentionSizes sizes;
  float scale = 1;
  /// true: query i sees the keys j <= i + keys - queries; false: all keys.
  bool causal = false;
  HeadRows q;
  HeadRows kv;   ///< of keys and of values
  HeadRows out;  ///< also of d_out
  HeadRows d_q;
  HeadRows d_kv;
  HeadRows lse;  ///< row: from a head to the next; tokens are contiguous
};

/// Each tensor from the first head of the first token; tensors that only the other direction uses
/// are null.
struct AttentionPointers {
  std::byte* q = nullptr;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  std::byte* out = nullptr;
  std::byte* lse = nullptr;
  std::byte* d_out = nullptr;
  std::byte* d_q = nullptr;
  std::byte* d_k = nullptr;
  std::byte* d_v = nullptr;
};

/// A cuDNN plan for one problem. `launch` only enqueues work and may be captured; pointers are
/// multiples of 16 bytes. Throws DeviceError if cuDNN reports an error.
struct AttentionPlan {
  std::function<void(const AttentionPointers& pointers, std::byte* scratch, cudaStream_t stream)>
      launch;
  size_t scratch_bytes = 0;
};

/// q, k, v -> out, lse. `spec` is the task's spec, for messages. Throws ConfigError for sizes
/// without a cuDNN kernel.
AttentionPlan plan_attention(const AttentionProblem& problem, const OpSpec& spec,
                             CudaContext& context);

/// Throw ConfigError for sizes for which no implementation has a forward, or a backward.
void check_attention(const AttentionSizes& sizes, const OpSpec& spec);
void check_attention_backward(const AttentionSizes& sizes, const OpSpec& spec);
/// Throws ConfigError if cuDNN of this version (as cudnnGetVersion) writes outside its buffers in
/// the backward over this many keys: before 9.15.1, if they are no multiple of 128 and the step is
/// a CUDA graph. Source: release notes of cudnn-frontend 1.16, and 9.14.0 on an H100.
void check_cudnn_backward(size_t version, int64_t keys);

/// q, k, v, out, lse, d_out -> d_q, d_k, d_v, each rounded once. out and lse may be those of more
/// keys than k and v have: the results are then the contributions of these keys to the gradients.
AttentionPlan plan_attention_backward(const AttentionProblem& problem, const OpSpec& spec,
                                      CudaContext& context,
                                      const AttentionBackwardOptions& options);

}  // namespace braid
