#pragma once

#include "backends/cpu/kernels/column_sums.h"
#include "backends/cpu/kernels/mamba2_parts.h"

/// The parts of mamba2_backward on each side of the state space: gated norm and convolution. Sums
/// over rows run block by block (column_sums.h).
namespace braid::mamba {

/// Gradient of the gated norm.
template <class T>
struct NormGrads {
  using W = Wide<T>;
  const T* y = nullptr;     // [rows, inner]
  const W* rstd = nullptr;  // [rows, norm_groups]
  const T* dv = nullptr;    // [rows, inner]
  T* d_zxbcdt = nullptr;    // gets dz; null: not computed
  W* dy = nullptr;          // [rows, inner]
};

/// With g = y SiLU(z), n = g rstd and h = dv w, in a group: dg = rstd (h - n mean(h n)). Adds dv n
/// to `d_weight` [inner].
template <class T, class W = Wide<T>>
void norm_row_backward(const Mamba2Attributes& a, const Inputs<T>& inputs,
                       const NormGrads<T>& grads, int64_t row, W* d_weight) {
  const int64_t size = a.inner() / a.norm_groups;
  const T* const z = inputs.zxbcdt + row * a.row_elems();
  const T* const y = grads.y + row * a.inner();
  const T* const dv = grads.dv + row * a.inner();
  T* const dz = grads.d_zxbcdt == nullptr ? nullptr : grads.d_zxbcdt + row * a.row_elems();
  W* const dy = grads.dy + row * a.inner();
  for (int64_t group = 0; group < a.norm_groups; ++group) {
    const int64_t begin = group * size;
    const W rstd = grads.rstd[row * a.norm_groups + group];
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = begin; c < begin + size; ++c) {
      const Silu<W> gate(static_cast<W>(z[c]));
      const W n = static_cast<W>(y[c]) * gate.value * rstd;
      const W d = static_cast<W>(dv[c]);
      sum += d * static_cast<W>(inputs.norm_weight[c]) * n;
      d_weight[c] += d * n;
    }
    const W mean = sum / static_cast<W>(size);
#pragma omp simd
    for (int64_t c = begin; c < begin + size; ++c) {
      const Silu<W> gate(static_cast<W>(z[c]));
      const W value = static_cast<W>(y[c]);
      const W h = static_cast<W>(dv[c]) * static_cast<W>(inputs.norm_weight[c]);
      const W dg = rstd * (h - value * gate.value * rstd * mean);
      dy[c] = dg * gate.value;
      if (dz != nullptr) {
        store(dz, c, dg * value * gate.slope);
      }
    }
  }
}

/// `partials` [row blocks, inner] is scratch.
template <class T, class W = Wide<T>>
void norm_backward(WorkerPool& workers, const Sizes& sizes, const Inputs<T>& inputs,
                   const NormGrads<T>& grads, bool accumulate, W* partials, W* d_weight) {
  const int64_t width = sizes.a.inner();
  const RowBlocks blocks{sizes.rows};
  const int64_t grain = row_grain(blocks.rows_per_block() * width);
  run_pieces(workers, blocks.count(), grain, [&](int, int64_t block, int64_t end) {
    for (; block < end; ++block) {
      W* const partial = partials + block * width;
      std::fill_n(partial, width, W(0));
      for (int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
        norm_row_backward(sizes.a, inputs, grads, row, partial);
      }
    }
  });
  add_partial_sums(workers, partials, blocks.count(), width, accumulate, d_weight);
}

/// Gradient of the convolution and its SiLU.
template <class T>
struct ConvolutionGrads {
  using W = Wide<T>;
  Taps<W> taps;
  W* d_xbc;        // [rows, convolved]: with respect to the result, then to the sums under SiLU
  W* row_buffers;  // [workers, convolved]
  W* partials;     // [row blocks, taps + 1, convolved]: of the weights tap by tap, and of the bias
  W* sums;         // [taps + 1, convolved]

  ConvolutionGrads(const Sizes& sizes, int num_workers, ScratchCursor& cursor)
      : taps(sizes, cursor),
        d_xbc(cursor.take<W>(sizes.rows * sizes.a.convolved())),
        row_buffers(cursor.take<W>(num_workers * sizes.a.convolved())),
        partials(
            cursor.take<W>(RowBlocks{sizes.rows}.count() * (sizes.taps + 1) * sizes.a.convolved())),
        sums(cursor.take<W>((sizes.taps + 1) * sizes.a.convolved())) {}
};

/// Gradient through SiLU, in place.
template <class T>
void silu_backward(WorkerPool& workers, const Sizes& sizes, const ConvRows<T>& rows,
                   const ConvolutionGrads<T>& grads) {
  using W = Wide<T>;
  const int64_t width = sizes.a.convolved();
  run_pieces(workers, sizes.rows, row_grain(width), [&](int worker, int64_t row, int64_t end) {
    W* const sums = grads.row_buffers + worker * width;
    for (; row < end; ++row) {
      convolve_row(sizes, rows, grads.taps, row, sums);
      W* const d = grads.d_xbc + row * width;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        d[c] *= Silu<W>(sums[c]).slope;
      }
    }
  });
}

/// Gradient with respect to x, B and C of the row at `place` of a sequence, which later rows of the
/// sequence read too. Negative places: rows in front of it.
template <class T>
void convolution_row_dgrad(const Sizes& sizes, const ConvolutionGrads<T>& grads, int64_t sequence,
                           int64_t place, Wide<T>* sums, T* d_in) {
  const int64_t width = sizes.a.convolved();
  const int64_t first = std::max<int64_t>(place, 0);
  const int64_t end = std::min(place + sizes.taps, sizes.a.sequence);
  std::fill_n(sums, width, Wide<T>(0));
  for (int64_t at = first; at < end; ++at) {
    const Wide<T>* const weight = grads.taps.weights + (sizes.taps - 1 - (at - place)) * width;
    const Wide<T>* const d = grads.d_xbc + (sequence * sizes.a.sequence + at) * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      sums[c] += weight[c] * d[c];
    }
  }
  for (int64_t c = 0; c < width; ++c) {
    store(d_in, c, sums[c]);
  }
}

/// Adds what one row adds to the gradients of weights and bias.
template <class T>
void convolution_row_wgrad(const Sizes& sizes, const ConvRows<T>& rows,
                           const ConvolutionGrads<T>& grads, int64_t row, Wide<T>* partial) {
  const int64_t width = sizes.a.convolved();
  const Wide<T>* const d = grads.d_xbc + row * width;
  for (int64_t tap = 0; tap < sizes.taps; ++tap) {
    const T* const in = rows.at(sizes, row, tap);
    if (in == nullptr) {
      continue;
    }
    Wide<T>* const sum = partial + tap * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      sum[c] += d[c] * static_cast<Wide<T>>(in[c]);
    }
  }
  Wide<T>* const bias = partial + sizes.taps * width;
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    bias[c] += d[c];
  }
}

template <class T>
struct ConvolutionResults {
  T* d_zxbcdt = nullptr;
  T* d_before = nullptr;        // [sequences, taps - 1, convolved]; null: not computed
  Wide<T>* d_weight = nullptr;  // [parts * convolved, taps]
  Wide<T>* d_bias = nullptr;    // [parts * convolved]
  bool accumulate = true;
};

template <class T>
void write_convolution_wgrad(const Sizes& sizes, const Wide<T>* sums,
                             const ConvolutionResults<T>& results) {
  const int64_t width = sizes.a.convolved();
  const auto put = [&](Wide<T>& to, Wide<T> sum) { to = results.accumulate ? to + sum : sum; };
  for_each_channel(sizes.a, [&](int64_t c, int64_t row) {
    for (int64_t tap = 0; tap < sizes.taps; ++tap) {
      put(results.d_weight[row * sizes.taps + tap], sums[tap * width + c]);
    }
    put(results.d_bias[row], sums[sizes.taps * width + c]);
  });
}

/// From grads.d_xbc, the gradient with respect to the results of the convolution.
template <class T>
void convolution_backward(WorkerPool& workers, const Sizes& sizes, const ConvRows<T>& rows,
                          const ConvolutionGrads<T>& grads, const ConvolutionResults<T>& results) {
  using W = Wide<T>;
  silu_backward(workers, sizes, rows, grads);
  const int64_t width = sizes.a.convolved();
  const int64_t partial_elems = (sizes.taps + 1) * width;
  const RowBlocks blocks{sizes.rows};
  run_pieces(workers, blocks.count(), row_grain(blocks.rows_per_block() * width),
             [&](int worker, int64_t block, int64_t end) {
               for (; block < end; ++block) {
                 W* const partial = grads.partials + block * partial_elems;
                 std::fill_n(partial, partial_elems, W(0));
                 for (int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
                   convolution_row_dgrad(
                       sizes, grads, row / sizes.a.sequence, row % sizes.a.sequence,
                       grads.row_buffers + worker * width,
                       results.d_zxbcdt + row * sizes.a.row_elems() + sizes.a.inner());
                   convolution_row_wgrad(sizes, rows, grads, row, partial);
                 }
               }
             });
  if (results.d_before != nullptr) {
    for (int64_t i = 0; i < sizes.sequences() * (sizes.taps - 1); ++i) {
      convolution_row_dgrad(sizes, grads, i / (sizes.taps - 1),
                            i % (sizes.taps - 1) - (sizes.taps - 1), grads.row_buffers,
                            results.d_before + i * width);
    }
  }
  add_partial_sums(workers, grads.partials, blocks.count(), partial_elems, false, grads.sums);
  write_convolution_wgrad(sizes, grads.sums, results);
}

}  // namespace braid::mamba
