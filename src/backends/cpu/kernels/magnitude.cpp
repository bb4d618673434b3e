#include "ops/magnitude.h"

#include <array>
#include <cmath>

#include "backends/cpu/kernels/column_sums.h"
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {
namespace {

/// Columns of w + scale b a that are made at a time.
constexpr int64_t kTileColumns = 512;

/// One factor b, and the rows of w that it adapts.
template <class T>
struct Factor {
  const T* b = nullptr;  // [rows, rank]
  const T* a = nullptr;  // [rank, K]
  int64_t begin = 0;
  int64_t rows = 0;
};

template <class W>
struct Squares {
  W base = 0;
  W adapted = 0;
};

/// Of columns [0, count) of a row of w; `a` begins at the same column and has rows of `width`.
template <class T, class W = Wide<T>>
void add_squares(const T* w, const T* b, const T* a, int64_t rank, int64_t width, W scale,
                 int64_t count, Squares<W>& sums) {
  std::array<W, kTileColumns> change;
  std::fill_n(change.begin(), count, W(0));
  for (int64_t r = 0; r < rank; ++r) {
    const W factor = b[r];
    const T* const row = a + r * width;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) {
      change[static_cast<size_t>(c)] += factor * static_cast<W>(row[c]);
    }
  }
  W base = 0;
  W adapted = 0;
#pragma omp simd reduction(+ : base, adapted)
  for (int64_t c = 0; c < count; ++c) {
    const W of_w = w[c];
    const W of_v = of_w + scale * change[static_cast<size_t>(c)];
    base += of_w * of_w;
    adapted += of_v * of_v;
  }
  sums.base += base;
  sums.adapted += adapted;
}

template <class T, class W = Wide<T>>
struct SquaresOf {
  const T* w = nullptr;  // [M, width]
  W* squares = nullptr;  // [2, M]
  int64_t num_rows = 0;  // M
  int64_t width = 0;
  int64_t rank = 0;
  int64_t step = 1;
  W scale = 1;

  /// Rows [row, end) of one factor.
  void rows(const Factor<T>& factor, int64_t row, int64_t end) const {
    for (; row < end; ++row) {
      const int64_t at = factor.begin + row * step;
      Squares<W> sums;
      for (int64_t c = 0; c < width; c += kTileColumns) {
        add_squares(w + at * width + c, factor.b + row * rank, factor.a + c, rank, width, scale,
                    std::min(kTileColumns, width - c), sums);
      }
      squares[at] = sums.base;
      squares[num_rows + at] = sums.adapted;
    }
  }
};

/// What a row of the weight gives to its feature.
template <class W>
struct Gain {
  W gain = 1;
  W inverse = 0;  // 1 / the length that the row has; 0 without an adapter

  Gain(W change, W base, W adapted) {
    if (adapted > W(0)) {
      gain = (std::sqrt(base) + change) / std::sqrt(adapted);
      inverse = W(1) / std::sqrt(adapted);
    }
  }
};

template <class T>
void apply_rows(const KernelArgs& args, const ApplyMagnitudesAttributes& a, int64_t rows,
                int64_t width, Wide<T>* gains) {
  using W = Wide<T>;
  const T* const v = args.data<const T>(0);
  const T* const change = args.data<const T>(1);
  const W* const squares = args.data<const W>(2);
  const T* const bias = a.has_bias && a.adds_bias ? args.data<const T>(3) : nullptr;
  T* const y = args.data<T>(a.has_bias ? 4 : 3);
  for (int64_t c = 0; c < width; ++c) {
    gains[c] = Gain<W>(change[c], squares[c], squares[width + c]).gain;
  }
  run_pieces(args.workers, rows, row_grain(width), [&](int, int64_t row, int64_t end) {
    for (; row < end; ++row) {
      const int64_t at = row * width;
      for (int64_t c = 0; c < width; ++c) {
        const W scaled = gains[c] * static_cast<W>(v[at + c]);
        store(y, at + c, bias == nullptr ? scaled : scaled + static_cast<W>(bias[c]));
      }
    }
  });
}

template <class T>
void apply_backward(const KernelArgs& args, bool accumulate, int64_t rows, int64_t width) {
  using W = Wide<T>;
  const T* const v = args.data<const T>(0);
  const T* const change = args.data<const T>(1);
  const W* const squares = args.data<const W>(2);
  const T* const dy = args.data<const T>(3);
  T* const dv = args.data<T>(4);
  ScratchCursor scratch(args.scratch.data());
  W* const gains = scratch.take<W>(width);
  W* const inverses = scratch.take<W>(width);
  const RowBlocks blocks{rows};
  W* const partials = scratch.take<W>(blocks.count() * width);
  for (int64_t c = 0; c < width; ++c) {
    const Gain<W> gain(change[c], squares[c], squares[width + c]);
    gains[c] = gain.gain;
    inverses[c] = gain.inverse;
  }
  const int64_t grain = row_grain(blocks.rows_per_block() * width);
  run_pieces(args.workers, blocks.count(), grain, [&](int, int64_t block, int64_t end) {
    for (; block < end; ++block) {
      W* const partial = partials + block * width;
      std::fill_n(partial, width, W(0));
      for (int64_t at = blocks.begin(block) * width; at < blocks.end(block) * width; at += width) {
        for (int64_t c = 0; c < width; ++c) {
          const W d = dy[at + c];
          partial[c] += d * static_cast<W>(v[at + c]) * inverses[c];
          store(dv, at + c, gains[c] * d);
        }
      }
    }
  });
  add_partial_sums(args.workers, partials, blocks.count(), width, accumulate, args.data<W>(5));
}

}  // namespace

CpuKernel make_adapted_squares(const OpSpec& spec, int /*num_workers*/) {
  const auto a = attributes_of<AdaptedSquaresAttributes>(spec).adapters;
  const size_t num_factors = spec.operands.size() - 3;
  const int64_t rank = spec.operands[2].shape[1];
  const Shape w = spec.operands[0].shape;
  std::array<int64_t, kMostAdapters> rows{};
  for (size_t i = 0; i < num_factors; ++i) {
    rows[i] = spec.operands[i + 2].shape[0];
  }
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const SquaresOf<T> of{.w = args.data<const T>(0),
                            .squares = args.data<Wide<T>>(num_factors + 2),
                            .num_rows = w[0],
                            .width = w[1],
                            .rank = rank,
                            .step = a.step,
                            .scale = static_cast<Wide<T>>(a.scale)};
      std::fill_n(of.squares, 2 * w[0], Wide<T>(0));
      for (size_t i = 0; i < num_factors; ++i) {
        const Factor<T> factor{.b = args.data<const T>(i + 2),
                               .a = args.data<const T>(1) + static_cast<int64_t>(i) * rank * w[1],
                               .begin = a.begin_of(i),
                               .rows = rows[i]};
        run_pieces(args.workers, factor.rows, row_grain(w[1] * rank),
                   [&](int, int64_t row, int64_t end) { of.rows(factor, row, end); });
      }
    }};
  });
}

CpuKernel make_apply_magnitudes(const OpSpec& spec, int /*num_workers*/) {
  const auto a = attributes_of<ApplyMagnitudesAttributes>(spec);
  const Shape v = spec.operands[0].shape;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run =
                [=](const KernelArgs& args) {
                  apply_rows<T>(args, a, v[0], v[1],
                                reinterpret_cast<Wide<T>*>(args.scratch.data()));
                },
            .scratch_bytes = align_scratch(static_cast<size_t>(v[1]) * sizeof(Wide<T>))};
  });
}

CpuKernel make_apply_magnitudes_backward(const OpSpec& spec, int /*num_workers*/) {
  const bool accumulate = attributes_of<ApplyMagnitudesBackwardAttributes>(spec).accumulate;
  const Shape v = spec.operands[0].shape;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    ScratchCursor scratch(nullptr);
    scratch.take<Wide<T>>(v[1]);
    scratch.take<Wide<T>>(v[1]);
    scratch.take<Wide<T>>(RowBlocks{v[0]}.count() * v[1]);
    return {.run = [=](const KernelArgs& args) { apply_backward<T>(args, accumulate, v[0], v[1]); },
            .scratch_bytes = scratch.bytes()};
  });
}

}  // namespace braid
