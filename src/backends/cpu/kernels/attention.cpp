// Causal attention in blocks (Dao et al., FlashAttention, 2022; backward as in FlashAttention-2,
// Dao, 2023, algorithm 2): scores exist only as one block of queries by one block of keys per
// worker. The products run in BLAS on the worker's own thread, so the result is bitwise independent
// of which worker computes a block.
#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/kernels/attention_blocks.h"
#include "backends/cpu/kernels/factories.h"
#include "ops/attributes.h"

namespace braid {
namespace {

using namespace flash;

static_assert(kKeyBlock % kQueryBlock == 0,
              "without limits, every query sees the first key of each block it meets");

/// Sizes of the problem, and the positions of heads: a row of qkv holds the query heads, then the
/// key heads, then the value heads.
struct Layout {
  int64_t batches = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t sequence = 0;
  double scale = 0;
  bool documents = false;
  AttentionWindow window;

  explicit Layout(const OpSpec& spec) {
    const auto attributes = attributes_of<AttentionAttributes>(spec);
    batches = spec.operands[0].shape[0] / attributes.sequence;
    heads = attributes.heads;
    kv_heads = attributes.kv_heads;
    head_size = attributes.head_size;
    sequence = attributes.sequence;
    scale = attributes.scale;
    documents = attributes.documents.documents;
    window = attributes.window;
  }

  /// Whether a query may not see the first keys of its sequence.
  bool is_limited() const { return documents || window.is_on(); }
  /// The first key that a query sees; does not descend with queries. `starts` [sequence] of
  /// documents; null: there is one.
  int64_t first_key(const int32_t* starts, int64_t query) const {
    const int64_t first = window.is_on() ? std::max<int64_t>(window.first_position(query), 0) : 0;
    return starts == nullptr ? first : std::max<int64_t>(first, starts[query]);
  }
  int64_t group() const { return heads / kv_heads; }
  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  int64_t out_width() const { return heads * head_size; }
  int64_t query_blocks() const { return (sequence + kQueryBlock - 1) / kQueryBlock; }
  int64_t key_blocks() const { return (sequence + kKeyBlock - 1) / kKeyBlock; }
};

template <class T>
Head<T> query_head(const Layout& layout, T* qkv, int64_t batch, int64_t head) {
  const int64_t width = layout.qkv_width();
  return {qkv + batch * layout.sequence * width + head * layout.head_size, width};
}

template <class T>
Head<T> key_head(const Layout& layout, T* qkv, int64_t batch, int64_t kv_head) {
  return query_head(layout, qkv, batch, layout.heads + kv_head);
}

template <class T>
Head<T> value_head(const Layout& layout, T* qkv, int64_t batch, int64_t kv_head) {
  return query_head(layout, qkv, batch, layout.heads + layout.kv_heads + kv_head);
}

template <class T>
Head<T> out_head(const Layout& layout, T* out, int64_t batch, int64_t head) {
  const int64_t width = layout.out_width();
  return {out + batch * layout.sequence * width + head * layout.head_size, width};
}

/// A block of queries and a block of keys. A query sees the keys from `first_key` to its own
/// position.
struct BlockPair : BlockSizes {
  const Layout& layout;
  int64_t query = 0;                // first query
  int64_t key = 0;                  // first key; key <= query
  const int32_t* starts = nullptr;  // [sequence], of documents; null: there is one

  BlockPair(const Layout& of, const int32_t* document_starts, int64_t query_block,
            int64_t key_block)
      : layout(of),
        query(query_block * kQueryBlock),
        key(key_block * kKeyBlock),
        starts(document_starts) {
    queries = std::min(kQueryBlock, layout.sequence - query);
    keys = std::min(kKeyBlock, query + queries - key);
  }
  /// Query number `row` of the block sees the keys [first, end) of the block. With limits there may
  /// be none.
  int64_t end(int64_t row) const { return std::min(keys, query + row + 1 - key); }
  int64_t first(int64_t row) const {
    return layout.is_limited()
               ? std::clamp<int64_t>(layout.first_key(starts, query + row) - key, 0, end(row))
               : 0;
  }
};

/// The first block of keys that a query of the block sees.
int64_t first_key_block(const Layout& layout, const int32_t* starts, int64_t query_block) {
  return layout.first_key(starts, query_block * kQueryBlock) / kKeyBlock;
}

// ---- forward

/// Replaces scores by exp(score - max so far), hidden ones by 0, and updates max, total and sum of
/// each query.
template <class T>
void update_softmax(const BlockPair& pair, bool is_first, int64_t head_size,
                    const ForwardScratch<T>& scratch) {
  using W = Wide<T>;
  for (int64_t row = 0; row < pair.queries; ++row) {
    W* const scores = scratch.scores + row * kKeyBlock;
    const int64_t first = pair.first(row);
    const int64_t end = pair.end(row);
    std::fill(scores, scores + first, W(0));
    std::fill(scores + end, scores + pair.keys, W(0));
    if (first == end) {
      continue;
    }
    const W block_max = max_of(scores + first, end - first);
    const W old_max = scratch.max[row];
    const W max = block_max > old_max ? block_max : old_max;
    const W block_total = exponentiate(scores + first, end - first, max);
    const W factor = vector_math::exp(old_max - max);  // 0 before the first key
    scratch.max[row] = max;
    scratch.total[row] = scratch.total[row] * factor + block_total;
    if (!is_first && factor != W(1)) {
      W* const sum = scratch.sum + row * head_size;
      for (int64_t i = 0; i < head_size; ++i) {
        sum[i] *= factor;
      }
    }
  }
}

/// out = sum / total, lse = max + log(total).
template <class T>
void finish_queries(int64_t queries, int64_t head_size, const ForwardScratch<T>& scratch,
                    Head<T> out, Wide<T>* lse) {
  using W = Wide<T>;
  for (int64_t row = 0; row < queries; ++row) {
    const W inverse = W(1) / scratch.total[row];
    const W* const sum = scratch.sum + row * head_size;
    T* const to = out.row(row);
    for (int64_t i = 0; i < head_size; ++i) {
      store(to, i, sum[i] * inverse);
    }
    lse[row] = scratch.max[row] + std::log(scratch.total[row]);
  }
}

template <class T>
struct ForwardHead {
  Head<const T> q;
  Head<const T> k;
  Head<const T> v;
  Head<T> out;
  Wide<T>* lse = nullptr;           // [sequence]
  const int32_t* starts = nullptr;  // [sequence], of documents; null: there is one
};

template <class T>
void attend_query_block(const Layout& layout, const ForwardHead<T>& head, int64_t query_block,
                        const ForwardScratch<T>& scratch) {
  using W = Wide<T>;
  const int64_t head_size = layout.head_size;
  const int64_t first_block = first_key_block(layout, head.starts, query_block);
  const BlockPair first(layout, head.starts, query_block, first_block);
  const auto q = widen(head.q.from_row(first.query), first.queries, head_size, scratch.q);
  std::fill_n(scratch.max, first.queries, -std::numeric_limits<W>::infinity());
  std::fill_n(scratch.total, first.queries, W(0));
  for (int64_t key = first.key; key < first.query + first.queries; key += kKeyBlock) {
    const BlockPair pair(layout, head.starts, query_block, key / kKeyBlock);
    const bool is_first = key == first.key;
    const auto k = widen(head.k.from_row(key), pair.keys, head_size, scratch.k);
    const auto v = widen(head.v.from_row(key), pair.keys, head_size, scratch.v);
    multiply_scores<W>(pair, head_size, layout.scale, q, k, scratch.scores);
    update_softmax(pair, is_first, head_size, scratch);
    multiply_keys<W>(pair, head_size, 1.0, scratch.scores, v, is_first ? 0.0 : 1.0,
                     {scratch.sum, head_size});
  }
  finish_queries(first.queries, head_size, scratch, head.out.from_row(first.query),
                 head.lse + first.query);
}

/// Starts of documents of a sequence, in that operand; null without documents.
const int32_t* starts_of(const Layout& layout, const KernelArgs& args, size_t operand,
                         int64_t batch) {
  return layout.documents ? args.data<const int32_t>(operand) + batch * layout.sequence : nullptr;
}

/// A work item is a head and a pair of query blocks: the first and the last, the second and the
/// last but one, and so on. Each pair sees the same number of keys.
template <class T>
void attend_item(const Layout& layout, const KernelArgs& args, int64_t item,
                 const ForwardScratch<T>& scratch) {
  const int64_t blocks = layout.query_blocks();
  const int64_t pairs = (blocks + 1) / 2;
  const int64_t low = item % pairs;
  const int64_t head = item / pairs % layout.heads;
  const int64_t batch = item / pairs / layout.heads;
  const T* const qkv = args.data<const T>(0);
  const ForwardHead<T> views{
      .q = query_head(layout, qkv, batch, head),
      .k = key_head(layout, qkv, batch, head / layout.group()),
      .v = value_head(layout, qkv, batch, head / layout.group()),
      .out = out_head(layout, args.data<T>(layout.documents ? 2 : 1), batch, head),
      .lse = args.data<Wide<T>>(layout.documents ? 3 : 2) +
             (batch * layout.heads + head) * layout.sequence,
      .starts = starts_of(layout, args, 1, batch)};
  attend_query_block(layout, views, low, scratch);
  if (blocks - 1 - low != low) {
    attend_query_block(layout, views, blocks - 1 - low, scratch);
  }
}

template <class T>
void forward(const Layout& layout, const KernelArgs& args) {
  const int64_t items = layout.batches * layout.heads * ((layout.query_blocks() + 1) / 2);
  const size_t bytes = ForwardScratch<T>(layout.head_size, nullptr).bytes;
  run_pieces(args.workers, items, 1, [&](int worker, int64_t begin, int64_t end) {
    const ForwardScratch<T> scratch(layout.head_size,
                                    args.scratch.data() + static_cast<size_t>(worker) * bytes);
    for (int64_t item = begin; item < end; ++item) {
      attend_item(layout, args, item, scratch);
    }
  });
}

// ---- backward

/// Scratch of one worker.
template <class T>
struct BackwardScratch {
  using W = Wide<T>;
  W* probabilities;  // [kQueryBlock, kKeyBlock]
  W* d_scores;       // [kQueryBlock, kKeyBlock]
  W* mean;           // [sequence], sum over the head of out * d_out, the mean of d_probability
  W* q = nullptr;    // [sequence, head_size], bf16 only, like all that follow
  W* k = nullptr;
  W* v = nullptr;
  W* d_out = nullptr;
  W* d_q = nullptr;
  W* d_k = nullptr;
  W* d_v = nullptr;
  size_t bytes;

  BackwardScratch(const Layout& layout, std::byte* base) {
    ScratchCursor cursor(base);
    probabilities = cursor.take<W>(kQueryBlock * kKeyBlock);
    d_scores = cursor.take<W>(kQueryBlock * kKeyBlock);
    mean = cursor.take<W>(layout.sequence);
    if (kIsNarrow<T>) {
      for (W** const copy : {&q, &k, &v, &d_out, &d_q, &d_k, &d_v}) {
        *copy = cursor.take<W>(layout.sequence * layout.head_size);
      }
    }
    bytes = cursor.bytes();
  }
};

/// The data of one query head and its key/value head in the backward.
template <class W>
struct BackwardHead {
  Head<const W> q = {};
  Head<const W> k = {};
  Head<const W> v = {};
  Head<const W> d_out = {};
  const W* lse = nullptr;           // [sequence]
  const W* mean = nullptr;          // [sequence]
  const int32_t* starts = nullptr;  // [sequence], of documents; null: there is one
  Head<W> d_q = {};
  Head<W> d_k = {};
  Head<W> d_v = {};
  bool is_first_of_group = false;  // overwrites d_k and d_v; the others add to them
};

/// probabilities: scores in, exp(score - lse) out. d_scores: d_probability in, probability *
/// (d_probability - mean) out. Hidden ones become 0.
template <class W>
void softmax_backward(const BlockPair& pair, const BackwardHead<W>& head, W* probabilities,
                      W* d_scores) {
  for (int64_t row = 0; row < pair.queries; ++row) {
    W* const p = probabilities + row * kKeyBlock;
    W* const d = d_scores + row * kKeyBlock;
    const W lse = head.lse[pair.query + row];
    const W mean = head.mean[pair.query + row];
    const int64_t first = pair.first(row);
    const int64_t end = pair.end(row);
#pragma omp simd
    for (int64_t i = first; i < end; ++i) {
      p[i] = vector_math::exp(p[i] - lse);
      d[i] = p[i] * (d[i] - mean);
    }
    for (W* const values : {p, d}) {
      std::fill(values, values + first, W(0));
      std::fill(values + end, values + pair.keys, W(0));
    }
  }
}

/// Without limits, the last query block comes first: it sees all keys of every key block, so it can
/// overwrite d_k and d_v, to which the others add. With limits all add.
template <class W>
void backward_pair(const Layout& layout, const BlockPair& pair, const BackwardHead<W>& head,
                   W* probabilities, W* d_scores) {
  const int64_t head_size = layout.head_size;
  const bool is_last = pair.query + pair.queries == layout.sequence;
  const bool overwrites = is_last && head.is_first_of_group && !layout.is_limited();
  const double kv_beta = overwrites ? 0.0 : 1.0;
  const bool is_first =
      pair.key == first_key_block(layout, head.starts, pair.query / kQueryBlock) * kKeyBlock;
  const auto q = head.q.from_row(pair.query);
  const auto k = head.k.from_row(pair.key);
  const auto d_out = head.d_out.from_row(pair.query);
  multiply_scores<W>(pair, head_size, layout.scale, q, k, probabilities);
  multiply_scores<W>(pair, head_size, 1.0, d_out, head.v.from_row(pair.key), d_scores);
  softmax_backward(pair, head, probabilities, d_scores);
  multiply_queries<W>(pair, head_size, 1.0, probabilities, d_out, kv_beta,
                      head.d_v.from_row(pair.key));
  multiply_queries<W>(pair, head_size, layout.scale, d_scores, q, kv_beta,
                      head.d_k.from_row(pair.key));
  multiply_keys<W>(pair, head_size, layout.scale, d_scores, k, is_first ? 0.0 : 1.0,
                   head.d_q.from_row(pair.query));
}

template <class W>
void backward_head(const Layout& layout, const BackwardHead<W>& head, W* probabilities,
                   W* d_scores) {
  if (layout.is_limited() && head.is_first_of_group) {
    fill_zeros(head.d_k, layout.sequence, layout.head_size);
    fill_zeros(head.d_v, layout.sequence, layout.head_size);
  }
  for (int64_t block = layout.query_blocks() - 1; block >= 0; --block) {
    for (int64_t key_block = first_key_block(layout, head.starts, block);
         key_block * kKeyBlock <= block * kQueryBlock; ++key_block) {
      backward_pair(layout, BlockPair(layout, head.starts, block, key_block), head, probabilities,
                    d_scores);
    }
  }
}

/// A work item is a key/value head with all its query heads, so that one worker owns d_k and d_v
/// and adds in a fixed order.
template <class T>
void backward_item(const Layout& layout, const KernelArgs& args, int64_t item,
                   const BackwardScratch<T>& scratch) {
  using W = Wide<T>;
  const int64_t rows = layout.sequence;
  const int64_t head_size = layout.head_size;
  const int64_t kv_head = item % layout.kv_heads;
  const int64_t batch = item / layout.kv_heads;
  const T* const qkv = args.data<const T>(0);
  T* const d_qkv = args.data<T>(layout.documents ? 5 : 4);
  const Head<T> d_k = key_head(layout, d_qkv, batch, kv_head);
  const Head<T> d_v = value_head(layout, d_qkv, batch, kv_head);
  BackwardHead<W> views{
      .k = widen(key_head(layout, qkv, batch, kv_head), rows, head_size, scratch.k),
      .v = widen(value_head(layout, qkv, batch, kv_head), rows, head_size, scratch.v),
      .mean = scratch.mean,
      .starts = starts_of(layout, args, 4, batch),
      .d_k = sum_of(d_k, head_size, scratch.d_k),
      .d_v = sum_of(d_v, head_size, scratch.d_v)};
  for (int64_t member = 0; member < layout.group(); ++member) {
    const int64_t head = kv_head * layout.group() + member;
    const Head<T> d_q = query_head(layout, d_qkv, batch, head);
    const auto out = out_head(layout, args.data<const T>(1), batch, head);
    const auto d_out = out_head(layout, args.data<const T>(3), batch, head);
    row_dots<T>(out, d_out, rows, head_size, scratch.mean);
    views.is_first_of_group = member == 0;
    views.lse = args.data<const W>(2) + (batch * layout.heads + head) * layout.sequence;
    views.q = widen(query_head(layout, qkv, batch, head), rows, head_size, scratch.q);
    views.d_out = widen(d_out, rows, head_size, scratch.d_out);
    views.d_q = sum_of(d_q, head_size, scratch.d_q);
    backward_head(layout, views, scratch.probabilities, scratch.d_scores);
    narrow(views.d_q, rows, head_size, d_q);
  }
  narrow(views.d_k, rows, head_size, d_k);
  narrow(views.d_v, rows, head_size, d_v);
}

template <class T>
void backward(const Layout& layout, const KernelArgs& args) {
  const size_t bytes = BackwardScratch<T>(layout, nullptr).bytes;
  run_pieces(args.workers, layout.batches * layout.kv_heads, 1,
             [&](int worker, int64_t begin, int64_t end) {
               const BackwardScratch<T> scratch(
                   layout, args.scratch.data() + static_cast<size_t>(worker) * bytes);
               for (int64_t item = begin; item < end; ++item) {
                 backward_item(layout, args, item, scratch);
               }
             });
}

}  // namespace

CpuKernel make_attention(const OpSpec& spec, int num_workers) {
  const Layout layout(spec);
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [layout](const KernelArgs& args) { forward<T>(layout, args); },
            .scratch_bytes = ForwardScratch<T>(layout.head_size, nullptr).bytes *
                             static_cast<size_t>(num_workers)};
  });
}

CpuKernel make_attention_backward(const OpSpec& spec, int num_workers) {
  const Layout layout(spec);
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [layout](const KernelArgs& args) { backward<T>(layout, args); },
            .scratch_bytes =
                BackwardScratch<T>(layout, nullptr).bytes * static_cast<size_t>(num_workers)};
  });
}

}  // namespace braid
