#pragma once

#include "backends/cpu/kernels/support.h"

/// Sums over the rows of a matrix, column by column, in an order that depends only on its shape:
/// rows are summed in blocks, then the blocks in order. The number of workers does not affect the
/// order.
namespace braid {

/// Blocks of at least 32 rows; at most 64 blocks.
struct RowBlocks {
  int64_t rows = 0;

  int64_t rows_per_block() const { return std::max<int64_t>(32, (rows + 63) / 64); }
  int64_t count() const { return (rows + rows_per_block() - 1) / rows_per_block(); }
  int64_t begin(int64_t block) const { return block * rows_per_block(); }
  int64_t end(int64_t block) const { return std::min(rows, begin(block) + rows_per_block()); }
};

/// Bytes of one partial sum per block of rows and column.
template <class W>
size_t partial_sums_bytes(int64_t rows, int64_t width) {
  return align_scratch(static_cast<size_t>(RowBlocks{rows}.count() * width) * sizeof(W));
}

/// sums[c] (+)= sum over blocks of partials[block][c]; W: float or double.
template <class W>
void add_partial_sums(WorkerPool& workers, const W* partials, int64_t num_blocks, int64_t width,
                      bool accumulate, W* sums) {
  const int64_t grain = (row_grain(num_blocks) + 63) / 64 * 64;  // whole vectors and cache lines
  run_pieces(workers, width, grain, [&](int, int64_t begin, int64_t end) {
    if (!accumulate) {
      std::fill(sums + begin, sums + end, W(0));
    }
    for (int64_t block = 0; block < num_blocks; ++block) {
      const W* const partial = partials + block * width;
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) {
        sums[c] += partial[c];
      }
    }
  });
}

/// The same into bf16, rounded once. Overwrites partials.
inline void add_partial_sums(WorkerPool& workers, float* partials, int64_t num_blocks,
                             int64_t width, bool accumulate, BFloat16* sums) {
  add_partial_sums(workers, partials + width, num_blocks - 1, width, /*accumulate=*/true, partials);
  run_pieces(workers, width, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      store(sums, c, partials[c] + (accumulate ? static_cast<float>(sums[c]) : 0.0F));
    }
  });
}

/// sums[c] (+)= sum over rows of x[n][c]; at least one row. `partials` holds partial_sums_bytes.
/// Sum: Wide<T>, or BFloat16 as T.
template <class T, class Sum>
void column_sums(WorkerPool& workers, const T* x, int64_t rows, int64_t width, bool accumulate,
                 Wide<T>* partials, Sum* sums) {
  const RowBlocks blocks{rows};
  const int64_t grain = row_grain(blocks.rows_per_block() * width);
  run_pieces(workers, blocks.count(), grain, [&](int, int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      Wide<T>* const partial = partials + block * width;
      std::fill(partial, partial + width, Wide<T>(0));
      for (int64_t n = blocks.begin(block); n < blocks.end(block); ++n) {
        const T* const row = x + n * width;
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) {
          partial[c] += static_cast<Wide<T>>(row[c]);
        }
      }
    }
  });
  add_partial_sums(workers, partials, blocks.count(), width, accumulate, sums);
}

}  // namespace braid
