#include "backends/cuda/kernels/attention_calls.h"

#include <algorithm>
#include <utility>

#include "backends/cuda/architecture.h"
#include "ops/attention.h"
#include "ops/attention_step.h"
#include "ops/attributes.h"

namespace braid {
namespace {

constexpr int64_t kAlignment = 16;
constexpr int64_t kPartAlignment = 256;
constexpr int64_t kElemBytes = 2;  ///< bf16
constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kEngineBytes = int64_t{16}
                                 << 20;  // for the engine: a few KB in all cases seen so far

int64_t round_up(int64_t size, int64_t step) {
  return (size + step - 1) / step * step;
}

/// The largest divisor of `count` that is at most `limit`, at least 1.
int64_t largest_divisor(int64_t count, int64_t limit) {
  for (int64_t divisor = std::min(count, limit); divisor > 1; --divisor) {
    if (count % divisor == 0) {
      return divisor;
    }
  }
  return 1;
}

/// d_scores of the queries of one key/value head, in tiles of the kernel.
int64_t d_scores_bytes(const AttentionSizes& sizes) {
  constexpr int64_t kQueryTile = 64;
  constexpr int64_t kKeyTile = 128;
  return sizes.group() * round_up(sizes.queries, kQueryTile) * round_up(sizes.keys, kKeyTile) *
         kElemBytes;
}

int64_t backward_bytes(const AttentionSizes& sizes, const AttentionBackwardOptions& options) {
  const AttentionCall call = attention_backward_call(sizes, options);
  const int64_t heads = call.batches * call.kv_heads * sizes.group();
  const int64_t query_rows = heads * sizes.queries;
  int64_t size_bytes = kEngineBytes + query_rows * kFloat;
  size_bytes += options.repeatable ? call.batches * call.kv_heads * d_scores_bytes(sizes)
                                   : query_rows * sizes.head_size * kFloat;
  return size_bytes + (sizes.group() > 1 ? 2 * heads * sizes.keys * sizes.head_size * kFloat : 0);
}

bool is_step(const OpSpec& spec) {
  return spec.op == kAttentionStepOp.name || spec.op == kAttentionStepBackwardOp.name;
}

bool is_forward(const OpSpec& spec) {
  return spec.op == kAttentionOp.name || spec.op == kAttentionStepOp.name;
}

AttentionStepAttributes step_of(const OpSpec& spec) {
  return is_forward(spec) ? attributes_of<AttentionStepAttributes>(spec)
                          : attributes_of<AttentionStepBackwardAttributes>(spec).step;
}

}  // namespace

AttentionSizes::AttentionSizes(const OpSpec& spec) {
  const auto take = [&](const auto& attributes, int64_t num_queries, int64_t num_keys) {
    batches = spec.operands[0].shape[0] / attributes.sequence;
    heads = attributes.heads;
    kv_heads = attributes.kv_heads;
    head_size = attributes.head_size;
    queries = num_queries;
    keys = num_keys;
    documents = attributes.documents.documents;
    value_size = head_size;
  };
  if (is_step(spec)) {
    const AttentionStepAttributes step = step_of(spec);
    take(step, step.queries, step.keys);
    window = step.window.limit;
  } else {
    const auto attributes = attributes_of<AttentionAttributes>(spec);
    take(attributes, attributes.sequence, attributes.sequence);
    window = attributes.window;
    const int64_t promised = attributes.padding.value_size;
    value_size = promised > 0 ? promised : head_size;
  }
}

AttentionCall attention_backward_call(const AttentionSizes& sizes,
                                      const AttentionBackwardOptions& options) {
  if (!options.repeatable || sizes.queries * kFloat % kAlignment != 0) {
    return {sizes.batches, sizes.kv_heads};
  }
  const int64_t kv_heads_that_fit =
      std::max<int64_t>(1, options.max_d_scores_bytes / d_scores_bytes(sizes));
  if (kv_heads_that_fit >= sizes.kv_heads) {
    return {largest_divisor(sizes.batches, kv_heads_that_fit / sizes.kv_heads), sizes.kv_heads};
  }
  return {1, largest_divisor(sizes.kv_heads, kv_heads_that_fit)};
}

bool has_attention_sm90([[maybe_unused]] const AttentionSizes& sizes) {
#ifdef BRAID_HAS_ATTENTION_SM90
  return runs_hopper_kernels(gpu_capability()) && (sizes.head_size == 64 || sizes.head_size == 128);
#else
  return false;
#endif
}

bool has_attention_backward_sm90([[maybe_unused]] const AttentionSizes& sizes) {
#ifdef BRAID_HAS_ATTENTION_SM90
  return has_attention_sm90(sizes) ||
         (runs_hopper_kernels(gpu_capability()) && sizes.head_size == 192 &&
          sizes.value_size <= 128 && sizes.group() == 1);
#else
  return false;
#endif
}

namespace {

constexpr int64_t kLongSequence = 2048;

AttentionMethod method_of(const AttentionSizes& sizes, bool uses_sm90) {
  if (sizes.is_limited()) {
    return AttentionMethod::kDocuments;
  }
  return uses_sm90 ? AttentionMethod::kSm90 : AttentionMethod::kCudnn;
}

}  // namespace

// TFLOP/s on an H200 (bench/notes.md, "Attention"). Forward, 8,192 tokens: 485 compared with
// cuDNN's 424 at head size 64, 602 with 549 at 128; 1,024 tokens: 406 with 419. Backward at head
// size 128, where d_key and d_value of query heads that share theirs pass through memory: 271
// compared with cuDNN's 313 with 7 heads of a group and 1,024 tokens, 439 with 398 with 4 heads and
// 4,096 tokens.
AttentionMethod attention_method(const AttentionSizes& sizes) {
  return method_of(sizes, has_attention_sm90(sizes) && sizes.queries > kLongSequence);
}

AttentionMethod attention_backward_method(const AttentionSizes& sizes) {
  const bool is_faster =
      sizes.group() == 1 || sizes.head_size == 64 || sizes.queries > kLongSequence;
  return method_of(sizes, has_attention_backward_sm90(sizes) && is_faster);
}

int64_t document_backward_scratch_bytes(const AttentionSizes& sizes) {
  return sizes.batches * sizes.heads * sizes.queries * kFloat;
}

Sm90Scratch::Sm90Scratch(const AttentionSizes& sizes) {
  constexpr int64_t kKeyTile = 128;
  constexpr int64_t kWord = 4;  // bytes of a float, of an int
  query_tile = sizes.head_size == 64 ? 128 : 64;
  query_rows = round_up(sizes.queries, query_tile);
  key_rows = round_up(sizes.keys, kKeyTile);
  const auto take = [&](int64_t words) {
    return std::exchange(size_bytes, round_up(size_bytes + words * kWord, kPartAlignment));
  };
  const int64_t heads = sizes.batches * sizes.heads;
  d_query_at = take(heads * query_rows * sizes.head_size);
  const int64_t grouped_heads = sizes.group() > 1 ? heads : 0;
  d_key_at = take(grouped_heads * key_rows * sizes.head_size);
  d_value_at = take(grouped_heads * key_rows * sizes.head_size);
  lse_log2_at = take(heads * query_rows);
  d_out_out_at = take(heads * query_rows);
  semaphores_at = take(heads * (query_rows / query_tile));
}

AttentionStepParts::AttentionStepParts(const AttentionSizes& sizes, bool is_backward) {
  const auto behind = [](int64_t begin, int64_t elems, int64_t elem_bytes) {
    return begin + round_up(elems * elem_bytes, kPartAlignment);
  };
  query_rows = behind(lse, sizes.batches * sizes.heads * sizes.queries, kFloat);
  kv_rows = behind(query_rows, sizes.batches * sizes.queries * sizes.out_width(), kElemBytes);
  rest = is_backward ? behind(kv_rows, sizes.batches * sizes.keys * sizes.kv_width(), kElemBytes)
                     : kv_rows;
}

int64_t max_attention_scratch_bytes(const OpSpec& spec, const AttentionBackwardOptions& options) {
  const AttentionSizes sizes(spec);
  if (sizes.is_limited()) {
    return is_forward(spec) ? 0 : document_backward_scratch_bytes(sizes);
  }
  if (spec.op == kAttentionOp.name && attention_method(sizes) == AttentionMethod::kSm90) {
    return 0;
  }
  const bool is_by_sm90 =
      spec.op == kAttentionBackwardOp.name &&
      options.method.value_or(attention_backward_method(sizes)) == AttentionMethod::kSm90;
  if (is_by_sm90) {
    return Sm90Scratch(sizes).size_bytes;
  }
  const int64_t parts_bytes = is_step(spec) ? AttentionStepParts(sizes, !is_forward(spec)).rest : 0;
  return parts_bytes + (is_forward(spec) ? kEngineBytes : backward_bytes(sizes, options));
}

}  // namespace braid
