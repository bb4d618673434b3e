#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "backends/cuda/kernels/attention_calls.h"
#include "ir/op_spec.h"

namespace braid {

class CudaContext;

/// How far apart the rows of a tensor of heads are, in elements; the heads of a row lie one behind
/// the other.
struct HeadRows {
  int64_t row = 0;       ///< from a token to the next
  int64_t sequence = 0;  ///< from the first token of a sequence to that of the next
};

/// Fused attention, softmax(scale * q k^T) v, of some queries and keys of each sequence. bf16, with
/// a log-sum-exp of the scaled scores in f32, which cuDNN calls statistics: max + ln(sum(exp(score
/// - max))).
struct AttentionProblem {
  AttentionSizes sizes;
  float scale = 1;
  /// Query i sees the keys j <= i + keys - queries; otherwise all.
  bool causal = false;
  HeadRows q;
  HeadRows kv;   ///< of keys and of values
  HeadRows out;  ///< also of d_out
  HeadRows d_q;
  HeadRows d_kv;
  HeadRows lse;  ///< row: from a head to the next; tokens lie one behind the other
};

/// Each tensor from the first head of the first token; those of the other direction are null.
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

/// Plans of cuDNN for one problem. `launch` only enqueues work and may be captured; pointers are
/// multiples of 16 bytes. Throws DeviceError if cuDNN refuses.
struct AttentionPlan {
  std::function<void(const AttentionPointers& pointers, std::byte* scratch, cudaStream_t stream)>
      launch;
  size_t scratch_bytes = 0;
};

/// q, k, v -> out, lse. `spec` is the task that asks. Throws ConfigError for sizes that cuDNN has
/// no kernels for.
AttentionPlan plan_attention(const AttentionProblem& problem, const OpSpec& spec,
                             CudaContext& context);

/// Throw ConfigError for sizes that there is no forward, or no backward, for, by whichever kernel.
void check_attention(const AttentionSizes& sizes, const OpSpec& spec);
void check_attention_backward(const AttentionSizes& sizes, const OpSpec& spec);

/// q, k, v, out, lse, d_out -> d_q, d_k, d_v, each rounded once. out and lse may be those of more
/// keys than k and v have: then these are the terms that these keys add to the gradients.
AttentionPlan plan_attention_backward(const AttentionProblem& problem, const OpSpec& spec,
                                      CudaContext& context,
                                      const AttentionBackwardOptions& options);

}  // namespace braid
