// Attention of the last tokens of sequences to all of their tokens, in blocks, as in attention.cpp.
#include "ops/cached_attention.h"

#include <limits>

#include "backends/cpu/kernels/attention_blocks.h"
#include "backends/cpu/kernels/factories.h"
#include "ops/attributes.h"

namespace braid {
namespace {

using namespace flash;

struct CacheLayout : CachedAttentionAttributes {
  int64_t sequences = 0;
  int64_t rows = 0;  // of a sequence
  int64_t capacity = 0;

  explicit CacheLayout(const OpSpec& spec)
      : CachedAttentionAttributes(attributes_of<CachedAttentionAttributes>(spec)),
        sequences(spec.operands[1].shape[0]),
        rows(spec.operands[0].shape[0] / sequences),
        capacity(spec.operands[3].shape[1]) {}

  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  int64_t out_width() const { return heads * head_size; }
  int64_t kv_width() const { return kv_heads * head_size; }
  int64_t query_blocks() const { return (rows + kQueryBlock - 1) / kQueryBlock; }
};

template <class T>
struct CacheArgs {
  const T* qkv;
  const int32_t* begins;
  const int32_t* counts;
  T* keys;
  T* values;
  T* out;

  explicit CacheArgs(const KernelArgs& args)
      : qkv(args.data<const T>(0)),
        begins(args.data<const int32_t>(1)),
        counts(args.data<const int32_t>(2)),
        keys(args.data<T>(3)),
        values(args.data<T>(4)),
        out(args.data<T>(5)) {}
};

/// Copies keys and values of a row of qkv to the place of its token, if it has one.
template <class T>
void append_row(const CacheLayout& layout, const CacheArgs<T>& args, int64_t row) {
  const int64_t sequence = row / layout.rows;
  const int64_t index = row % layout.rows;
  if (index >= args.counts[sequence]) {
    return;
  }
  const int64_t width = layout.kv_width();
  const int64_t to = (sequence * layout.capacity + args.begins[sequence] + index) * width;
  const T* const keys = args.qkv + row * layout.qkv_width() + layout.out_width();
  std::copy_n(keys, width, args.keys + to);
  std::copy_n(keys + width, width, args.values + to);
}

/// A block of queries of one sequence and a block of its keys.
struct CachePair : BlockSizes {
  int64_t last_visible = 0;  // the last key of the block that its first query sees
  AttentionWindow window;

  int64_t first(int64_t row) const {
    return window.is_on()
               ? std::clamp<int64_t>(window.first_position(last_visible + row), 0, end(row))
               : 0;
  }
  int64_t end(int64_t row) const { return std::clamp<int64_t>(last_visible + row + 1, 0, keys); }
};

template <class T>
void attend_block(const CacheLayout& layout, const CacheArgs<T>& args, int64_t item,
                  const ForwardScratch<T>& scratch) {
  using W = Wide<T>;
  const int64_t first = item % layout.query_blocks() * kQueryBlock;
  const int64_t head = item / layout.query_blocks() % layout.heads;
  const int64_t sequence = item / layout.query_blocks() / layout.heads;
  const int64_t size = layout.head_size;
  const int64_t rows = std::min(kQueryBlock, layout.rows - first);
  const int64_t queries = std::clamp<int64_t>(args.counts[sequence] - first, 0, rows);
  const int64_t row = sequence * layout.rows + first;
  const Head<T> out{args.out + row * layout.out_width() + head * size, layout.out_width()};
  fill_zeros(out.from_row(queries), rows - queries, size);
  if (queries == 0) {
    return;
  }
  const int64_t cached = sequence * layout.capacity * layout.kv_width() +
                         head / (layout.heads / layout.kv_heads) * size;
  const Head<const T> keys{args.keys + cached, layout.kv_width()};
  const Head<const T> values{args.values + cached, layout.kv_width()};
  const auto q =
      widen(Head<const T>{args.qkv + row * layout.qkv_width() + head * size, layout.qkv_width()},
            queries, size, scratch.q);
  std::fill_n(scratch.max, queries, -std::numeric_limits<W>::infinity());
  std::fill_n(scratch.total, queries, W(0));
  std::fill_n(scratch.sum, queries * size, W(0));
  const int64_t first_position = args.begins[sequence] + first;
  const int64_t num_keys = first_position + queries;
  const int64_t unseen = layout.window.is_on()
                             ? std::max<int64_t>(layout.window.first_position(first_position), 0)
                             : 0;
  for (int64_t key = unseen / kKeyBlock * kKeyBlock; key < num_keys; key += kKeyBlock) {
    const CachePair pair{{.queries = queries, .keys = std::min(kKeyBlock, num_keys - key)},
                         first_position - key,
                         layout.window};
    const auto k = widen(keys.from_row(key), pair.keys, size, scratch.k);
    const auto v = widen(values.from_row(key), pair.keys, size, scratch.v);
    multiply_scores<W>(pair, size, layout.scale, q, k, scratch.scores);
    update_softmax(pair, size, scratch);
    multiply_keys<W>(pair, size, 1.0, scratch.scores, v, 1.0, {scratch.sum, size});
  }
  for (int64_t query = 0; query < queries; ++query) {
    const W inverse = W(1) / scratch.total[query];
    for (int64_t i = 0; i < size; ++i) {
      store(out.row(query), i, scratch.sum[query * size + i] * inverse);
    }
  }
}

template <class T>
void run(const CacheLayout& layout, const KernelArgs& kernel) {
  const CacheArgs<T> args(kernel);
  run_pieces(kernel.workers, layout.sequences * layout.rows, row_grain(2 * layout.kv_width()),
             [&](int, int64_t row, int64_t end) {
               for (; row < end; ++row) {
                 append_row(layout, args, row);
               }
             });
  const size_t bytes = ForwardScratch<T>(layout.head_size, nullptr).bytes;
  run_pieces(kernel.workers, layout.sequences * layout.heads * layout.query_blocks(), 1,
             [&](int worker, int64_t item, int64_t end) {
               const ForwardScratch<T> scratch(
                   layout.head_size, kernel.scratch.data() + static_cast<size_t>(worker) * bytes);
               for (; item < end; ++item) {
                 attend_block(layout, args, item, scratch);
               }
             });
}

}  // namespace

CpuKernel make_cached_attention(const OpSpec& spec, int num_workers) {
  const CacheLayout layout(spec);
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [layout](const KernelArgs& args) { run<T>(layout, args); },
            .scratch_bytes = ForwardScratch<T>(layout.head_size, nullptr).bytes *
                             static_cast<size_t>(num_workers)};
  });
}

}  // namespace braid
