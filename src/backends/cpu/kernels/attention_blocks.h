#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/support.h"
#include "backends/cpu/kernels/vector_math.h"

/// Shared parts of the attention kernels: heads in packed rows, and products of one block of
/// queries with one block of keys.
namespace braid::flash {

// The best in measurements of 32..128 by 128..512 over head sizes 32..128 and 256..2048 tokens
// (bench/kernels/attention_bench.cpp). Small query blocks waste little of the block on the
// diagonal; large ones make better matrix products.
inline constexpr int64_t kQueryBlock = 64;
inline constexpr int64_t kKeyBlock = 256;

/// One head of a packed tensor, or a part of its rows: [rows, head_size] with rows `stride`
/// elements apart.
template <class T>
struct Head {
  T* data = nullptr;
  int64_t stride = 0;

  T* row(int64_t index) const { return data + index * stride; }
  Head from_row(int64_t index) const { return {row(index), stride}; }
};

/// Whether T is narrower than the type of computation.
template <class T>
constexpr bool kIsNarrow = !std::is_same_v<T, Wide<T>>;

/// Rows of T in the type of computation: in place, or for bf16 as a copy in `copy`, [rows,
/// head_size].
template <class T>
Head<const Wide<T>> widen(Head<const T> head, int64_t rows, int64_t head_size, Wide<T>* copy) {
  if constexpr (kIsNarrow<T>) {
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(head.row(row), head_size, copy + row * head_size);
    }
    return {copy, head_size};
  } else {
    return head;
  }
}

/// The accumulator of a result: in place, or for bf16 `sum`, which `narrow` rounds once at the end.
template <class T>
Head<Wide<T>> sum_of(Head<T> head, int64_t head_size, Wide<T>* sum) {
  if constexpr (kIsNarrow<T>) {
    return {sum, head_size};
  } else {
    return head;
  }
}

template <class T>
void narrow(Head<Wide<T>> sum, int64_t rows, int64_t head_size, Head<T> head) {
  if constexpr (kIsNarrow<T>) {
    for (int64_t row = 0; row < rows; ++row) {
      const Wide<T>* const from = sum.row(row);
      T* const to = head.row(row);
      for (int64_t i = 0; i < head_size; ++i) {
        store(to, i, from[i]);
      }
    }
  }
}

template <class W>
void fill_zeros(Head<W> head, int64_t rows, int64_t head_size) {
  for (int64_t row = 0; row < rows; ++row) {
    std::fill_n(head.row(row), head_size, W(0));
  }
}

/// Sizes of a block of scores: at most kQueryBlock by kKeyBlock.
struct BlockSizes {
  int64_t queries = 0;
  int64_t keys = 0;
};

/// scores [queries, keys] = scale * q k^T, or any other product of that shape.
template <class W>
void multiply_scores(const BlockSizes& pair, int64_t head_size, double scale, Head<const W> q,
                     Head<const W> k, W* scores) {
  gemm_on_this_thread<W>({.transpose_b = true,
                          .m = pair.queries,
                          .n = pair.keys,
                          .k = head_size,
                          .a = q.data,
                          .lda = q.stride,
                          .b = k.data,
                          .ldb = k.stride,
                          .c = scores,
                          .ldc = kKeyBlock,
                          .alpha = scale});
}

/// sum [queries, head_size] = scale * scores x + beta * sum; x [keys, head_size].
template <class W>
void multiply_keys(const BlockSizes& pair, int64_t head_size, double scale, const W* scores,
                   Head<const W> x, double beta, Head<W> sum) {
  gemm_on_this_thread<W>({.m = pair.queries,
                          .n = head_size,
                          .k = pair.keys,
                          .a = scores,
                          .lda = kKeyBlock,
                          .b = x.data,
                          .ldb = x.stride,
                          .c = sum.data,
                          .ldc = sum.stride,
                          .alpha = scale,
                          .beta = beta});
}

/// sum [keys, head_size] = scale * scores^T x + beta * sum; x [queries, head_size].
template <class W>
void multiply_queries(const BlockSizes& pair, int64_t head_size, double scale, const W* scores,
                      Head<const W> x, double beta, Head<W> sum) {
  gemm_on_this_thread<W>({.transpose_a = true,
                          .m = pair.keys,
                          .n = head_size,
                          .k = pair.queries,
                          .a = scores,
                          .lda = kKeyBlock,
                          .b = x.data,
                          .ldb = x.stride,
                          .c = sum.data,
                          .ldc = sum.stride,
                          .alpha = scale,
                          .beta = beta});
}

template <class W>
W max_of(const W* x, int64_t count) {
  W best = x[0];
#pragma omp simd reduction(max : best)
  for (int64_t i = 0; i < count; ++i) {
    best = x[i] > best ? x[i] : best;
  }
  return best;
}

/// x = exp(x - max); returns their sum.
template <class W>
W exponentiate(W* x, int64_t count, W max) {
  W sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    x[i] = vector_math::exp(x[i] - max);
    sum += x[i];
  }
  return sum;
}

/// A worker's scratch for the blocks of a forward.
template <class T>
struct ForwardScratch {
  using W = Wide<T>;
  W* scores;       // [kQueryBlock, kKeyBlock]
  W* sum;          // [kQueryBlock, head_size], of exp(score - max) * value
  W* max;          // [kQueryBlock]
  W* total;        // [kQueryBlock], of exp(score - max)
  W* q = nullptr;  // [kQueryBlock, head_size], bf16 only, like the next two
  W* k = nullptr;  // [kKeyBlock, head_size]
  W* v = nullptr;  // [kKeyBlock, head_size]
  size_t bytes;

  ForwardScratch(int64_t head_size, std::byte* base) {
    ScratchCursor cursor(base);
    scores = cursor.take<W>(kQueryBlock * kKeyBlock);
    sum = cursor.take<W>(kQueryBlock * head_size);
    max = cursor.take<W>(kQueryBlock);
    total = cursor.take<W>(kQueryBlock);
    if (kIsNarrow<T>) {
      q = cursor.take<W>(kQueryBlock * head_size);
      k = cursor.take<W>(kKeyBlock * head_size);
      v = cursor.take<W>(kKeyBlock * head_size);
    }
    bytes = cursor.bytes();
  }
};

/// Replaces scores by exp(score - max so far), hidden ones by 0, and updates max, total and sum of
/// each query. Query `row` of a pair of blocks sees the keys [pair.first(row), pair.end(row)).
template <class T, class Pair>
void update_softmax(const Pair& pair, int64_t head_size, const ForwardScratch<T>& scratch) {
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
    const W old_max = scratch.max[row];
    const W max = std::max(max_of(scores + first, end - first), old_max);
    const W factor = std::exp(old_max - max);  // 0 before the first key
    scratch.max[row] = max;
    scratch.total[row] =
        scratch.total[row] * factor + exponentiate(scores + first, end - first, max);
    for (int64_t i = 0; i < head_size; ++i) {
      scratch.sum[row * head_size + i] *= factor;
    }
  }
}

/// Dot products of the rows of a and b.
template <class T>
void row_dots(Head<const T> a, Head<const T> b, int64_t rows, int64_t head_size, Wide<T>* dots) {
  using W = Wide<T>;
  for (int64_t row = 0; row < rows; ++row) {
    const T* const x = a.row(row);
    const T* const y = b.row(row);
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < head_size; ++i) {
      sum += static_cast<W>(x[i]) * static_cast<W>(y[i]);
    }
    dots[row] = sum;
  }
}

}  // namespace braid::flash
