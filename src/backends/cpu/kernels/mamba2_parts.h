#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/support.h"
#include "backends/cpu/kernels/vector_math.h"
#include "ops/mamba2.h"

/// Shared parts of the Mamba-2 kernels: the convolution in front of the state space, and the state
/// of one head from chunk to chunk. W is the type of computation.
///
/// In a chunk with rows 0 to q - 1 and incoming state S, a head has l_i = sum of dt A over rows 0
/// to i. All factors are exponentials of l_i - l_j with i >= j, which is at most 0, so nothing
/// overflows and no long decay becomes NaN.
namespace braid::mamba {

/// Operands that both ops read. The weights of heads and channels begin with those of this part;
/// those of the convolution are of all parts.
template <class T>
struct Inputs {
  const T* zxbcdt = nullptr;       // [rows, row_elems]
  const T* conv_weight = nullptr;  // [parts * convolved, taps]
  const T* conv_bias = nullptr;    // [parts * convolved]
  const T* dt_bias = nullptr;      // [heads], like the next two
  const T* a_log = nullptr;
  const T* skip = nullptr;
  const T* norm_weight = nullptr;  // [inner]

  Inputs(const KernelArgs& args, const Mamba2Attributes& a)
      : zxbcdt(args.data<const T>(0)),
        conv_weight(args.data<const T>(1)),
        conv_bias(args.data<const T>(2)),
        dt_bias(args.data<const T>(3) + a.weights.index * a.heads),
        a_log(args.data<const T>(4) + a.weights.index * a.heads),
        skip(args.data<const T>(5) + a.weights.index * a.heads),
        norm_weight(args.data<const T>(6) + a.weights.index * a.inner()) {}
};

struct Sizes {
  Mamba2Attributes a;
  int64_t rows = 0;
  int64_t taps = 0;

  Sizes(const OpSpec& spec, const Mamba2Attributes& attributes)
      : a(attributes), rows(spec.operands[0].shape[0]), taps(spec.operands[1].shape[1]) {}

  int64_t sequences() const { return rows / a.sequence; }
  int64_t chunk() const { return std::min(a.chunk, a.sequence); }
  int64_t chunks() const { return (a.sequence + chunk() - 1) / chunk(); }
  int64_t chunk_rows(int64_t index) const {
    return std::min(chunk(), a.sequence - index * chunk());
  }
  int64_t state_elems() const { return a.head_size * a.state; }
};

/// What the convolution reads.
template <class T>
struct ConvRows {
  const T* zxbcdt = nullptr;
  const T* before = nullptr;  // [sequences, taps - 1, convolved], in front of each; null: 0

  /// x, B and C of the row that this tap of `row` reads; null: 0.
  const T* at(const Sizes& sizes, int64_t row, int64_t tap) const {
    const int64_t back = sizes.taps - 1 - tap;
    const int64_t place = row % sizes.a.sequence;
    if (back <= place) {
      return zxbcdt + (row - back) * sizes.a.row_elems() + sizes.a.inner();
    }
    const int64_t index = row / sizes.a.sequence * (sizes.taps - 1) + place + tap;
    return before == nullptr ? nullptr : before + index * sizes.a.convolved();
  }
};

/// visit(channel, its row of conv_weight).
template <class Visit>
void for_each_channel(const Mamba2Attributes& a, const Visit& visit) {
  for (const Mamba2Attributes::ConvRun& run : a.conv_runs()) {
    for (int64_t i = 0; i < run.size; ++i) {
      visit(run.begin + i, run.weight_begin + i);
    }
  }
}

/// The weights of the convolution, tap by tap, so that loops run over channels.
template <class W>
struct Taps {
  W* weights = nullptr;  // [taps, convolved]
  W* bias = nullptr;     // [convolved]

  Taps(const Sizes& sizes, ScratchCursor& cursor)
      : weights(cursor.take<W>(sizes.taps * sizes.a.convolved())),
        bias(cursor.take<W>(sizes.a.convolved())) {}

  template <class T>
  void load(const Sizes& sizes, const Inputs<T>& inputs) const {
    const int64_t width = sizes.a.convolved();
    for_each_channel(sizes.a, [&](int64_t c, int64_t row) {
      bias[c] = static_cast<W>(inputs.conv_bias[row]);
      for (int64_t tap = 0; tap < sizes.taps; ++tap) {
        weights[tap * width + c] = static_cast<W>(inputs.conv_weight[row * sizes.taps + tap]);
      }
    });
  }
};

/// out [convolved] = convolution of x, B and C at `row`, before SiLU.
template <class T, class W = Wide<T>>
void convolve_row(const Sizes& sizes, const ConvRows<T>& rows, const Taps<W>& taps, int64_t row,
                  W* out) {
  const int64_t width = sizes.a.convolved();
  std::copy_n(taps.bias, width, out);
  for (int64_t tap = 0; tap < sizes.taps; ++tap) {
    const T* const in = rows.at(sizes, row, tap);
    if (in == nullptr) {
      continue;
    }
    const W* const weight = taps.weights + tap * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      out[c] += weight[c] * static_cast<W>(in[c]);
    }
  }
}

/// xbc [rows, convolved] = SiLU of the convolution of all rows.
template <class T, class W = Wide<T>>
void convolve(WorkerPool& workers, const Sizes& sizes, const ConvRows<T>& rows, const Taps<W>& taps,
              W* xbc) {
  const int64_t width = sizes.a.convolved();
  run_pieces(workers, sizes.rows, row_grain(width), [&](int, int64_t row, int64_t end) {
    for (; row < end; ++row) {
      W* const out = xbc + row * width;
      convolve_row(sizes, rows, taps, row, out);
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        out[c] *= vector_math::sigmoid(out[c]);
      }
    }
  });
}

template <class W>
W softplus(W x) {
  return x > W(20) ? x : std::log1p(std::exp(x));
}

/// What a head multiplies with.
template <class W>
struct HeadWeights {
  W dt_bias, a, skip;

  template <class T>
  HeadWeights(const Inputs<T>& inputs, int64_t head)
      : dt_bias(static_cast<W>(inputs.dt_bias[head])),
        a(-std::exp(static_cast<W>(inputs.a_log[head]))),
        skip(static_cast<W>(inputs.skip[head])) {}
};

/// One head in one chunk: its rows of x, B and C after the convolution, which are `stride` elements
/// apart.
template <class W>
struct HeadChunk {
  const W* x = nullptr;  // [rows, head_size]
  const W* b = nullptr;  // [rows, state]
  const W* c = nullptr;  // [rows, state]
  int64_t stride = 0;
  int64_t rows = 0;
};

template <class W>
HeadChunk<W> head_chunk(const Sizes& sizes, const W* xbc, int64_t first_row, int64_t rows,
                        int64_t head) {
  const Mamba2Attributes& a = sizes.a;
  const W* const row = xbc + first_row * a.convolved();
  const W* const b = row + a.inner() + a.group_of(head) * a.state;
  return {.x = row + head * a.head_size,
          .b = b,
          .c = b + a.groups * a.state,
          .stride = a.convolved(),
          .rows = rows};
}

/// dt of a head's rows in a chunk, what follows from it, and scratch for rows times such factors.
template <class W>
struct ChunkSteps {
  W* dt = nullptr;          // [chunk]
  W* l = nullptr;           // [chunk]
  W* to_end = nullptr;      // [chunk], exp(l_last - l_i)
  W* from_begin = nullptr;  // [chunk], exp(l_i)
  W* scaled = nullptr;      // [chunk, head_size]

  ChunkSteps(const Sizes& sizes, ScratchCursor& cursor)
      : dt(cursor.take<W>(sizes.chunk())),
        l(cursor.take<W>(sizes.chunk())),
        to_end(cursor.take<W>(sizes.chunk())),
        from_begin(cursor.take<W>(sizes.chunk())),
        scaled(cursor.take<W>(sizes.chunk() * sizes.a.head_size)) {}

  /// `raw`: dt of the head in the chunk's first row of zxbcdt.
  template <class T>
  void set(const Sizes& sizes, const HeadWeights<W>& weights, const T* raw, int64_t rows) const {
    const auto low = static_cast<W>(sizes.a.dt_min);
    const auto high = static_cast<W>(sizes.a.dt_max);
    W sum = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const W step = softplus(static_cast<W>(raw[i * sizes.a.row_elems()]) + weights.dt_bias);
      dt[i] = std::clamp(step, low, high);
      sum += dt[i] * weights.a;
      l[i] = sum;
      from_begin[i] = std::exp(sum);
    }
    for (int64_t i = 0; i < rows; ++i) {
      to_end[i] = std::exp(sum - l[i]);
    }
  }
};

/// factors[j] *= exp(l_i - l_j) dt_j for j <= i.
template <class W>
void decay_row(const ChunkSteps<W>& steps, int64_t i, W* factors) {
  const W last = steps.l[i];
#pragma omp simd
  for (int64_t j = 0; j <= i; ++j) {
    factors[j] *= vector_math::exp(last - steps.l[j]) * steps.dt[j];
  }
}

/// Two factors [rows, depth] of a chunk; those of the second are as far apart as all of its rows.
template <class W>
struct RowFactors {
  int64_t depth = 0;
  const W* a = nullptr;
  int64_t a_stride = 0;
  const W* b = nullptr;
};

/// products [rows, rows] = a b^T.
template <class W>
void multiply_rows(const Sizes& sizes, const HeadChunk<W>& chunk, const RowFactors<W>& factors,
                   W* products) {
  gemm_on_this_thread<W>({.transpose_b = true,
                          .m = chunk.rows,
                          .n = chunk.rows,
                          .k = factors.depth,
                          .a = factors.a,
                          .lda = factors.a_stride,
                          .b = factors.b,
                          .ldb = chunk.stride,
                          .c = products,
                          .ldc = sizes.chunk()});
}

/// S = exp(l_last) S + sum over rows of exp(l_last - l_j) dt_j x_j B_j^T; without `has_state` the
/// incoming S is 0 whatever it holds.
template <class W>
void advance_state(const Sizes& sizes, const HeadChunk<W>& chunk, const ChunkSteps<W>& steps,
                   bool has_state, W* state) {
  const int64_t size = sizes.a.head_size;
  for (int64_t j = 0; j < chunk.rows; ++j) {
    const W factor = steps.to_end[j] * steps.dt[j];
    for (int64_t p = 0; p < size; ++p) {
      steps.scaled[j * size + p] = factor * chunk.x[j * chunk.stride + p];
    }
  }
  gemm_on_this_thread<W>({.transpose_a = true,
                          .m = size,
                          .n = sizes.a.state,
                          .k = chunk.rows,
                          .a = steps.scaled,
                          .lda = size,
                          .b = chunk.b,
                          .ldb = chunk.stride,
                          .c = state,
                          .ldc = sizes.a.state,
                          .beta = has_state ? steps.from_begin[chunk.rows - 1] : W(0)});
}

/// dy of a head's rows in a chunk, `inner` apart.
template <class W>
struct ChunkGrads {
  const W* dy = nullptr;
  bool has_grad = false;  ///< that of the state behind the chunk is not 0
};

/// G = exp(l_last) G + sum over rows of exp(l_i) dy_i C_i^T: from the gradient of the state behind
/// a chunk to that of the state in front of it.
template <class W>
void retreat_state(const Sizes& sizes, const HeadChunk<W>& chunk, const ChunkGrads<W>& grads,
                   const ChunkSteps<W>& steps, W* grad_state) {
  const int64_t size = sizes.a.head_size;
  for (int64_t i = 0; i < chunk.rows; ++i) {
    for (int64_t p = 0; p < size; ++p) {
      steps.scaled[i * size + p] = steps.from_begin[i] * grads.dy[i * sizes.a.inner() + p];
    }
  }
  gemm_on_this_thread<W>({.transpose_a = true,
                          .m = size,
                          .n = sizes.a.state,
                          .k = chunk.rows,
                          .a = steps.scaled,
                          .lda = size,
                          .b = chunk.c,
                          .ldb = chunk.stride,
                          .c = grad_state,
                          .ldc = sizes.a.state,
                          .beta = grads.has_grad ? steps.from_begin[chunk.rows - 1] : W(0)});
}

/// SiLU(z), and its derivative.
template <class W>
struct Silu {
  W value, slope;

  explicit Silu(W z) {
    const W s = vector_math::sigmoid(z);
    value = z * s;
    slope = s * (W(1) + z * (W(1) - s));
  }
};

/// rstd and v of one row.
template <class T, class W = Wide<T>>
void norm_row(const Mamba2Attributes& a, const T* y, const T* z, const T* weight, W* rstd, T* v) {
  const int64_t size = a.inner() / a.norm_groups;
  for (int64_t group = 0; group < a.norm_groups; ++group) {
    const int64_t begin = group * size;
    W squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = begin; c < begin + size; ++c) {
      const W gate = static_cast<W>(z[c]);
      const W gated = static_cast<W>(y[c]) * gate * vector_math::sigmoid(gate);
      squares += gated * gated;
    }
    rstd[group] = W(1) / std::sqrt(squares / static_cast<W>(size) + static_cast<W>(a.epsilon));
#pragma omp simd
    for (int64_t c = begin; c < begin + size; ++c) {
      const W gate = static_cast<W>(z[c]);
      const W gated = static_cast<W>(y[c]) * gate * vector_math::sigmoid(gate);
      store(v, c, gated * rstd[group] * static_cast<W>(weight[c]));
    }
  }
}

}  // namespace braid::mamba
