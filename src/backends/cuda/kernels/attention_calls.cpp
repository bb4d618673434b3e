#include "backends/cuda/kernels/attention_calls.h"

#include <algorithm>

#include "ops/attention.h"
#include "ops/attributes.h"

namespace braid {
namespace {

constexpr int64_t kAlignment = 16;
constexpr int64_t kEngineBytes = int64_t{16}
                                 << 20;  // of its own: a few KB in all that we have seen

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
  constexpr int64_t kElemBytes = 2;
  const auto padded = [&](int64_t tile) { return (sizes.sequence + tile - 1) / tile * tile; };
  return sizes.group() * padded(kQueryTile) * padded(kKeyTile) * kElemBytes;
}

}  // namespace

AttentionSizes::AttentionSizes(const OpSpec& spec) {
  const auto attributes = attributes_of<AttentionAttributes>(spec);
  batches = spec.operands[0].shape[0] / attributes.sequence;
  heads = attributes.heads;
  kv_heads = attributes.kv_heads;
  head_size = attributes.head_size;
  sequence = attributes.sequence;
}

AttentionCall attention_backward_call(const AttentionSizes& sizes,
                                      const AttentionBackwardOptions& options) {
  const auto lse_row_bytes = sizes.sequence * static_cast<int64_t>(sizeof(float));
  if (!options.repeatable || lse_row_bytes % kAlignment != 0) {
    return {sizes.batches, sizes.kv_heads};
  }
  const int64_t kv_heads_that_fit =
      std::max<int64_t>(1, options.max_d_scores_bytes / d_scores_bytes(sizes));
  if (kv_heads_that_fit >= sizes.kv_heads) {
    return {largest_divisor(sizes.batches, kv_heads_that_fit / sizes.kv_heads), sizes.kv_heads};
  }
  return {1, largest_divisor(sizes.kv_heads, kv_heads_that_fit)};
}

int64_t max_attention_scratch_bytes(const OpSpec& spec, const AttentionBackwardOptions& options) {
  if (spec.op == kAttentionOp.name) {
    return kEngineBytes;
  }
  constexpr int64_t kFloat = sizeof(float);
  const AttentionSizes sizes(spec);
  const AttentionCall call = attention_backward_call(sizes, options);
  const int64_t rows = call.batches * call.kv_heads * sizes.group() * sizes.sequence;
  const int64_t head_rows_bytes = rows * sizes.head_size * kFloat;  // of all query heads, in fp32
  int64_t size_bytes = kEngineBytes + rows * kFloat;
  size_bytes +=
      options.repeatable ? call.batches * call.kv_heads * d_scores_bytes(sizes) : head_rows_bytes;
  return size_bytes + (sizes.group() > 1 ? 2 * head_rows_bytes : 0);
}

}  // namespace braid
