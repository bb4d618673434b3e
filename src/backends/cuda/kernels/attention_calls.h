#pragma once

#include <cstdint>
#include <optional>

#include "ir/op_spec.h"
#include "ops/attention_window.h"

/// The number of cuDNN calls that an attention task makes, and their memory. Independent of CUDA,
/// so that memory can be counted without a device.
namespace braid {

/// The implementation of attention or its backward. A step of attention uses cuDNN, and attention
/// inside documents or windows, also of a step, always kDocuments.
enum class AttentionMethod {
  kCudnn,
  kSm90,       ///< attention_sm90.h, attention_backward_sm90.h
  kDocuments,  ///< attention_documents.h
};

/// Options of the backward of attention; the defaults are those of `make_cuda_kernel`.
struct AttentionBackwardOptions {
  /// Bitwise repeatable. cuDNN 9.19 then stores d_scores of a whole call in memory (2 bytes per
  /// pair of query and key, including hidden ones) instead of adding to d_query with atomics.
  bool repeatable = true;
  /// Heads and sequences are split into as many calls as needed to keep d_scores of one call below
  /// this.
  int64_t max_d_scores_bytes = int64_t{4} << 30;
  /// Default: `attention_backward_method`.
  std::optional<AttentionMethod> method;
};

/// Sizes of an attention, an attention_step or a backward of one: how many queries of each sequence
/// see how many keys.
struct AttentionSizes {
  int64_t batches = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t value_size = 0;  ///< elements of value heads that are not all zero, at most head_size
  int64_t queries = 0;
  int64_t keys = 0;
  bool documents = false;  ///< separates documents
  AttentionWindow window = {};

  explicit AttentionSizes(const OpSpec& spec);
  bool is_limited() const { return documents || window.is_on(); }
  int64_t group() const { return heads / kv_heads; }
  int64_t out_width() const { return heads * head_size; }
  int64_t kv_width() const { return 2 * kv_heads * head_size; }
};

/// One call of cuDNN: these heads of these sequences, with the strides of the whole tensor.
struct AttentionCall {
  int64_t batches = 0;
  int64_t kv_heads = 0;
};

/// Whole sequences as long as their d_scores fit, then some heads of one sequence. If the rows of
/// lse of one head are not a multiple of 16 bytes, a call cannot begin inside a sequence.
AttentionCall attention_backward_call(const AttentionSizes& sizes,
                                      const AttentionBackwardOptions& options);

/// Whether this build has the kernels of attention_sm90.h and attention_backward_sm90.h
/// (scripts/build_sm90_kernels.sh makes them), and they support these sizes.
bool has_attention_sm90(const AttentionSizes& sizes);
bool has_attention_backward_sm90(const AttentionSizes& sizes);

/// The faster method for these sizes by a fixed rule, with measurements in attention_calls.cpp.
/// Because of the rule, results are bitwise equal on all ranks and machines with the same build,
/// and memory can be counted without a GPU; a measurement at start-up could not guarantee this.
AttentionMethod attention_method(const AttentionSizes& sizes);
AttentionMethod attention_backward_method(const AttentionSizes& sizes);

/// Scratch of the kernel of attention_backward_sm90.h: offsets of its parts in bytes, and the
/// number of rows of a head in them, padded to whole tiles.
struct Sm90Scratch {
  int64_t query_tile = 0;
  int64_t query_rows = 0;
  int64_t key_rows = 0;
  int64_t d_query_at = 0;     ///< [B, H, query_rows * D] f32
  int64_t d_key_at = 0;       ///< [B, H, key_rows * D] f32, of each query head; only if H > K
  int64_t d_value_at = 0;     ///< [B, H, key_rows * D] f32, of each query head; only if H > K
  int64_t lse_log2_at = 0;    ///< [B, H, query_rows] f32
  int64_t d_out_out_at = 0;   ///< [B, H, query_rows] f32
  int64_t semaphores_at = 0;  ///< [B, H, query_rows / query_tile] int
  int64_t size_bytes = 0;

  explicit Sm90Scratch(const AttentionSizes& sizes);
};

/// Scratch of the backward of attention_documents.h: f32 [batches, heads, queries].
int64_t document_backward_scratch_bytes(const AttentionSizes& sizes);

/// Offsets, in the scratch of an attention_step or of its backward, of the arrays that cuDNN reads
/// and writes in addition to the operands; in bytes, multiples of 256.
struct AttentionStepParts {
  int64_t lse = 0;         ///< f32 [batches, heads, queries], of this step; backward: of all keys
  int64_t query_rows = 0;  ///< bf16 [batches * queries, out_width]: out; backward: d_q
  int64_t kv_rows = 0;     ///< bf16 [batches * keys, kv_width]: d_kv; empty in the forward
  int64_t rest = 0;        ///< after them, where cuDNN's own scratch begins

  AttentionStepParts(const AttentionSizes& sizes, bool is_backward);
};

/// An upper bound for cuDNN's plans: what cudnn-frontend lists for its graph (sums of d_out * out
/// in fp32, d_query in fp32 if it is added to with atomics), otherwise d_scores of a call, d_key
/// and d_value of all query heads if several share one, and a small amount for the engine itself.
/// For a step also its AttentionStepParts. Inside documents or windows: exactly what the kernels
/// need.
int64_t max_attention_scratch_bytes(const OpSpec& spec, const AttentionBackwardOptions& options);

}  // namespace braid
