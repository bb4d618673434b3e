// Attention of a range of queries to a range of keys, merged into the results of earlier steps; in
// blocks, as in attention.cpp.
#include "ops/attention_step.h"

#include <cmath>
#include <limits>

#include "backends/cpu/kernels/attention_blocks.h"
#include "backends/cpu/kernels/factories.h"
#include "ops/attributes.h"

namespace braid {
namespace {

using namespace flash;

constexpr int64_t blocks_of(int64_t count, int64_t block) {
  return (count + block - 1) / block;
}

struct StepLayout : AttentionStepAttributes {
  int64_t batches = 0;

  StepLayout(const AttentionStepAttributes& attributes, const OpSpec& spec)
      : AttentionStepAttributes(attributes),
        batches(spec.operands[0].shape[0] / attributes.sequence) {}

  int64_t group() const { return heads / kv_heads; }
  int64_t out_width() const { return heads * head_size; }
  int64_t kv_width() const { return 2 * kv_heads * head_size; }
  int64_t query_blocks() const { return blocks_of(queries, kQueryBlock); }
  /// Starts of documents of the range of queries of a sequence, in that operand; null without
  /// documents.
  const int32_t* starts(const KernelArgs& args, size_t operand, int64_t batch) const {
    return documents.documents ? args.data<const int32_t>(operand) + batch * sequence + query_begin
                               : nullptr;
  }
  bool is_limited() const { return documents.documents || window.is_on(); }
  /// The first key of the range that a query of the range sees; `starts` as above.
  int64_t first_key(const int32_t* range_starts, int64_t query) const {
    int64_t position = window.is_on() ? window.first_position(query_begin + query) : 0;
    if (range_starts != nullptr) {
      position = std::max<int64_t>(position, range_starts[query]);
    }
    return std::max<int64_t>(key_positions.before(position, kv_sequence) - key_begin, 0);
  }

  /// Head `head` of a sequence's queries; each row has `width` elements and begins with them.
  template <class T>
  Head<T> query_head(T* rows, int64_t width, int64_t batch, int64_t head) const {
    return Head<T>{rows + head * head_size, width}.from_row(batch * sequence + query_begin);
  }
  /// Head of a sequence's keys (`kv_head`) or values (kv_heads + kv_head).
  template <class T>
  Head<T> kv_head(T* kv, int64_t batch, int64_t head) const {
    return Head<T>{kv + head * head_size, kv_width()}.from_row(batch * kv_sequence + key_begin);
  }
};

/// A block of queries and a block of keys; both are counted from the beginning of the ranges.
struct StepPair : BlockSizes {
  const StepLayout& step;
  const int32_t* starts;  // of the range of queries; null: without documents
  int64_t query = 0;
  int64_t key = 0;
  int64_t last_visible = 0;  // the last key that the block's first query sees

  StepPair(const StepLayout& layout, const int32_t* document_starts, int64_t query_block,
           int64_t key_block)
      : step(layout),
        starts(document_starts),
        query(query_block * kQueryBlock),
        key(key_block * kKeyBlock) {
    queries = std::min(kQueryBlock, layout.queries - query);
    keys = std::min(kKeyBlock, layout.keys - key);
    last_visible = layout.causal ? query + layout.keys - layout.queries : layout.keys;
  }
  /// No query sees any of these keys.
  bool is_hidden() const {
    return key > last_visible + queries - 1 ||
           (step.is_limited() && key + keys <= step.first_key(starts, query));
  }
  /// Query number `row` of the block sees the keys [first, end) of the block; may be none.
  int64_t end(int64_t row) const {
    return std::clamp<int64_t>(last_visible + row + 1 - key, 0, keys);
  }
  int64_t first(int64_t row) const {
    return step.is_limited()
               ? std::clamp<int64_t>(step.first_key(starts, query + row) - key, 0, end(row))
               : 0;
  }
};

// ---- forward

/// Merges a block of queries into `out` and `lse`, or overwrites both.
template <class T>
void merge_queries(int64_t queries, const StepLayout& layout, const ForwardScratch<T>& scratch,
                   Head<Wide<T>> out, Wide<T>* lse) {
  using W = Wide<T>;
  for (int64_t row = 0; row < queries; ++row) {
    if (scratch.total[row] == W(0)) {  // the query sees no key
      if (!layout.accumulate) {
        std::fill_n(out.row(row), layout.head_size, W(0));
        lse[row] = -std::numeric_limits<W>::infinity();
      }
      continue;
    }
    const W found = scratch.max[row] + std::log(scratch.total[row]);
    const W before = layout.accumulate ? lse[row] : -std::numeric_limits<W>::infinity();
    const W larger = std::max(found, before);
    const W old_weight = std::exp(before - larger);
    const W weight = std::exp(found - larger);
    const W old_factor = old_weight / (old_weight + weight);
    const W factor = weight / (old_weight + weight) / scratch.total[row];
    const W* const sum = scratch.sum + row * layout.head_size;
    W* const to = out.row(row);
    for (int64_t i = 0; i < layout.head_size; ++i) {
      to[i] = (layout.accumulate ? to[i] * old_factor : W(0)) + sum[i] * factor;
    }
    lse[row] = larger + std::log(old_weight + weight);
  }
}

template <class T>
void attend_query_block(const StepLayout& layout, const KernelArgs& args, int64_t item,
                        const ForwardScratch<T>& scratch) {
  using W = Wide<T>;
  const int64_t block = item % layout.query_blocks();
  const int64_t head = item / layout.query_blocks() % layout.heads;
  const int64_t batch = item / layout.query_blocks() / layout.heads;
  const int64_t head_size = layout.head_size;
  const T* const kv = args.data<const T>(1);
  const auto all_k = layout.kv_head(kv, batch, head / layout.group());
  const auto all_v = layout.kv_head(kv, batch, layout.kv_heads + head / layout.group());
  const int32_t* const starts = layout.starts(args, 2, batch);
  const size_t first_result = starts != nullptr ? 3 : 2;
  const StepPair first(layout, starts, block, 0);
  const auto q = widen(
      layout.query_head(args.data<const T>(0), layout.out_width() + layout.kv_width(), batch, head)
          .from_row(first.query),
      first.queries, head_size, scratch.q);
  std::fill_n(scratch.max, first.queries, -std::numeric_limits<W>::infinity());
  std::fill_n(scratch.total, first.queries, W(0));
  std::fill_n(scratch.sum, first.queries * head_size, W(0));
  for (int64_t key_block = 0; key_block < blocks_of(layout.keys, kKeyBlock); ++key_block) {
    const StepPair pair(layout, starts, block, key_block);
    if (pair.is_hidden()) {
      continue;
    }
    const auto k = widen(all_k.from_row(pair.key), pair.keys, head_size, scratch.k);
    const auto v = widen(all_v.from_row(pair.key), pair.keys, head_size, scratch.v);
    multiply_scores<W>(pair, head_size, layout.scale, q, k, scratch.scores);
    update_softmax(pair, head_size, scratch);
    multiply_keys<W>(pair, head_size, 1.0, scratch.scores, v, 1.0, {scratch.sum, head_size});
  }
  merge_queries(first.queries, layout, scratch,
                layout.query_head(args.data<W>(first_result), layout.out_width(), batch, head)
                    .from_row(first.query),
                args.data<W>(first_result + 1) + (batch * layout.heads + head) * layout.sequence +
                    layout.query_begin + first.query);
}

/// Sets sum to 0 and lse to -infinity for the queries of sequence `batch` outside the range.
template <class W>
void clear_other_queries(const StepLayout& layout, int64_t batch, W* sum, W* lse) {
  const int64_t end = layout.query_begin + layout.queries;
  const auto clear = [&](int64_t from, int64_t to) {
    std::fill(sum + (batch * layout.sequence + from) * layout.out_width(),
              sum + (batch * layout.sequence + to) * layout.out_width(), W(0));
    for (int64_t head = 0; head < layout.heads; ++head) {
      W* const row = lse + (batch * layout.heads + head) * layout.sequence;
      std::fill(row + from, row + to, -std::numeric_limits<W>::infinity());
    }
  };
  clear(0, layout.query_begin);
  clear(end, layout.sequence);
}

template <class T>
void step(const StepLayout& layout, const KernelArgs& args) {
  using W = Wide<T>;
  const size_t bytes = ForwardScratch<T>(layout.head_size, nullptr).bytes;
  const size_t sum = layout.documents.documents ? 3 : 2;
  for (int64_t batch = 0; batch < (layout.accumulate ? 0 : layout.batches); ++batch) {
    clear_other_queries(layout, batch, args.data<W>(sum), args.data<W>(sum + 1));
  }
  run_pieces(args.workers, layout.batches * layout.heads * layout.query_blocks(), 1,
             [&](int worker, int64_t begin, int64_t end) {
               const ForwardScratch<T> scratch(
                   layout.head_size, args.scratch.data() + static_cast<size_t>(worker) * bytes);
               for (int64_t item = begin; item < end; ++item) {
                 attend_query_block(layout, args, item, scratch);
               }
             });
}

// ---- backward

/// Scratch of one worker.
template <class T>
struct StepBackwardScratch {
  using W = Wide<T>;
  W* probabilities;  // [kQueryBlock, kKeyBlock]
  W* d_scores;       // [kQueryBlock, kKeyBlock]
  W* mean;           // [queries], sum over the head of out * d_out, the mean of d_probability
  W* q = nullptr;    // [queries, head_size], bf16 only, like all that follow
  W* d_out = nullptr;
  W* k = nullptr;  // [keys, head_size]
  W* v = nullptr;
  size_t bytes;

  StepBackwardScratch(const StepLayout& layout, std::byte* base) {
    ScratchCursor cursor(base);
    probabilities = cursor.take<W>(kQueryBlock * kKeyBlock);
    d_scores = cursor.take<W>(kQueryBlock * kKeyBlock);
    mean = cursor.take<W>(layout.queries);
    if (kIsNarrow<T>) {
      q = cursor.take<W>(layout.queries * layout.head_size);
      d_out = cursor.take<W>(layout.queries * layout.head_size);
      k = cursor.take<W>(layout.keys * layout.head_size);
      v = cursor.take<W>(layout.keys * layout.head_size);
    }
    bytes = cursor.bytes();
  }
};

/// The data of one query head and its key/value head in the backward; rows of the ranges.
template <class W>
struct StepBackwardHead {
  Head<const W> q = {};
  Head<const W> k = {};
  Head<const W> v = {};
  Head<const W> d_out = {};
  const W* lse = nullptr;
  const W* mean = nullptr;
  Head<W> d_q = {};
  Head<W> d_k = {};
  Head<W> d_v = {};
};

/// probabilities: scores in, exp(score - lse) out. d_scores: d_probability in, probability *
/// (d_probability - mean) out. Hidden ones become 0.
template <class W>
void softmax_backward(const StepPair& pair, const StepBackwardHead<W>& head, W* probabilities,
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

template <class W>
void backward_pair(const StepLayout& layout, const StepPair& pair, const StepBackwardHead<W>& head,
                   W* probabilities, W* d_scores) {
  const int64_t head_size = layout.head_size;
  const auto q = head.q.from_row(pair.query);
  const auto k = head.k.from_row(pair.key);
  const auto d_out = head.d_out.from_row(pair.query);
  multiply_scores<W>(pair, head_size, layout.scale, q, k, probabilities);
  multiply_scores<W>(pair, head_size, 1.0, d_out, head.v.from_row(pair.key), d_scores);
  softmax_backward(pair, head, probabilities, d_scores);
  multiply_queries<W>(pair, head_size, 1.0, probabilities, d_out, 1.0, head.d_v.from_row(pair.key));
  multiply_queries<W>(pair, head_size, layout.scale, d_scores, q, 1.0, head.d_k.from_row(pair.key));
  multiply_keys<W>(pair, head_size, layout.scale, d_scores, k, 1.0, head.d_q.from_row(pair.query));
}

/// Sets the parts of d_q and d_kv to 0 to which the item does not add: its heads, in all rows of
/// the sequence.
template <class W>
void clear_gradients(const StepLayout& layout, const AttentionStepBackwardAttributes& attributes,
                     int64_t batch, int64_t kv_head, W* d_q, W* d_kv) {
  const int64_t head_size = layout.head_size;
  for (int64_t i = 0; i < (attributes.accumulate_q ? 0 : layout.group()); ++i) {
    const Head<W> head{d_q + (kv_head * layout.group() + i) * head_size, layout.out_width()};
    fill_zeros(head.from_row(batch * layout.sequence), layout.sequence, head_size);
  }
  for (int64_t i = 0; i < (attributes.accumulate_kv ? 0 : 2); ++i) {
    const Head<W> head{d_kv + (i * layout.kv_heads + kv_head) * head_size, layout.kv_width()};
    fill_zeros(head.from_row(batch * layout.kv_sequence), layout.kv_sequence, head_size);
  }
}

/// A work item is a key/value head with all its query heads, so that one worker owns d_k and d_v
/// and adds in a fixed order.
template <class T>
void backward_item(const StepLayout& layout, const AttentionStepBackwardAttributes& attributes,
                   const KernelArgs& args, int64_t item, const StepBackwardScratch<T>& scratch) {
  using W = Wide<T>;
  const int64_t head_size = layout.head_size;
  const int64_t kv_head = item % layout.kv_heads;
  const int64_t batch = item / layout.kv_heads;
  const int64_t qkv_width = layout.out_width() + layout.kv_width();
  const T* const kv = args.data<const T>(1);
  const int32_t* const starts = layout.starts(args, 5, batch);
  W* const d_q = args.data<W>(starts != nullptr ? 6 : 5);
  W* const d_kv = args.data<W>(starts != nullptr ? 7 : 6);
  clear_gradients(layout, attributes, batch, kv_head, d_q, d_kv);
  StepBackwardHead<W> views{
      .k = widen(layout.kv_head(kv, batch, kv_head), layout.keys, head_size, scratch.k),
      .v = widen(layout.kv_head(kv, batch, layout.kv_heads + kv_head), layout.keys, head_size,
                 scratch.v),
      .mean = scratch.mean,
      .d_k = layout.kv_head(d_kv, batch, kv_head),
      .d_v = layout.kv_head(d_kv, batch, layout.kv_heads + kv_head)};
  for (int64_t member = 0; member < layout.group(); ++member) {
    const int64_t head = kv_head * layout.group() + member;
    const auto out = layout.query_head(args.data<const T>(2), layout.out_width(), batch, head);
    const auto d_out = layout.query_head(args.data<const T>(4), layout.out_width(), batch, head);
    row_dots<T>(out, d_out, layout.queries, head_size, scratch.mean);
    views.q = widen(layout.query_head(args.data<const T>(0), qkv_width, batch, head),
                    layout.queries, head_size, scratch.q);
    views.d_out = widen(d_out, layout.queries, head_size, scratch.d_out);
    views.lse = args.data<const W>(3) + (batch * layout.heads + head) * layout.sequence +
                layout.query_begin;
    views.d_q = layout.query_head(d_q, layout.out_width(), batch, head);
    for (int64_t block = 0; block < layout.query_blocks(); ++block) {
      for (int64_t key_block = 0; key_block < blocks_of(layout.keys, kKeyBlock); ++key_block) {
        const StepPair pair(layout, starts, block, key_block);
        if (!pair.is_hidden()) {
          backward_pair(layout, pair, views, scratch.probabilities, scratch.d_scores);
        }
      }
    }
  }
}

}  // namespace

CpuKernel make_attention_step(const OpSpec& spec, int num_workers) {
  const StepLayout layout(attributes_of<AttentionStepAttributes>(spec), spec);
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [layout](const KernelArgs& args) { step<T>(layout, args); },
            .scratch_bytes = ForwardScratch<T>(layout.head_size, nullptr).bytes *
                             static_cast<size_t>(num_workers)};
  });
}

CpuKernel make_attention_step_backward(const OpSpec& spec, int num_workers) {
  const auto attributes = attributes_of<AttentionStepBackwardAttributes>(spec);
  const StepLayout layout(attributes.step, spec);
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    const size_t bytes = StepBackwardScratch<T>(layout, nullptr).bytes;
    const auto run = [=](const KernelArgs& args) {
      run_pieces(args.workers, layout.batches * layout.kv_heads, 1,
                 [&](int worker, int64_t begin, int64_t end) {
                   const StepBackwardScratch<T> scratch(
                       layout, args.scratch.data() + static_cast<size_t>(worker) * bytes);
                   for (int64_t item = begin; item < end; ++item) {
                     backward_item<T>(layout, attributes, args, item, scratch);
                   }
                 });
    };
    return {.run = run, .scratch_bytes = bytes * static_cast<size_t>(num_workers)};
  });
}

CpuKernel make_attention_finish(const OpSpec& spec, int num_workers) {
  const bool rounds = spec.operands[0].dtype != spec.operands[1].dtype;
  return rounds ? make_cast(spec, num_workers) : make_copy(spec, num_workers);
}

}  // namespace braid
