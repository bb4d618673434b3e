// The recurrence of a Mamba-2 layer row by row, as it is defined (ops/mamba2.h), from the states
// that earlier runs left.
#include "ops/cached_mamba2.h"

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/mamba2_parts.h"
#include "ops/attributes.h"

namespace braid {
namespace {

using namespace mamba;

template <class T>
struct CacheArgs {
  Inputs<T> inputs;
  const int32_t* begins;
  const int32_t* counts;
  T* window;        // [sequences, taps, convolved]
  Wide<T>* states;  // [sequences, heads, head_size, state]
  T* v;             // [rows, inner]

  CacheArgs(const KernelArgs& args, const Mamba2Attributes& a)
      : inputs(args, a),
        begins(args.data<const int32_t>(7)),
        counts(args.data<const int32_t>(8)),
        window(args.data<T>(9)),
        states(args.data<Wide<T>>(10)),
        v(args.data<T>(11)) {}
};

/// Scratch of a run; without memory it only counts the bytes.
template <class T>
struct CacheScratch {
  using W = Wide<T>;
  ScratchCursor cursor;
  Taps<W> taps;
  W* xbc;   // [rows, convolved], after SiLU
  T* y;     // [rows, inner]
  W* rstd;  // [rows, norm_groups]

  CacheScratch(const Sizes& sizes, std::byte* base)
      : cursor(base),
        taps(sizes, cursor),
        xbc(cursor.take<W>(sizes.rows * sizes.a.convolved())),
        y(cursor.take<T>(sizes.rows * sizes.a.inner())),
        rstd(cursor.take<W>(sizes.rows * sizes.a.norm_groups)) {}
};

/// x, B and C before the convolution of the token `index` of a sequence's rows in this run, or
/// before them, if negative; null before the sequence began.
template <class T>
const T* convolved_input(const Sizes& sizes, const CacheArgs<T>& args, int64_t sequence,
                         int64_t index) {
  if (index >= 0) {
    return args.inputs.zxbcdt + (sequence * sizes.a.sequence + index) * sizes.a.row_elems() +
           sizes.a.inner();
  }
  return args.begins[sequence] + index < 0
             ? nullptr
             : args.window + (sequence * sizes.taps + sizes.taps + index) * sizes.a.convolved();
}

template <class T>
void convolve_token(const Sizes& sizes, const CacheArgs<T>& args, const CacheScratch<T>& scratch,
                    int64_t row) {
  using W = Wide<T>;
  const int64_t width = sizes.a.convolved();
  W* const out = scratch.xbc + row * width;
  std::copy_n(scratch.taps.bias, width, out);
  for (int64_t tap = 0; tap < sizes.taps; ++tap) {
    const T* const in = convolved_input(sizes, args, row / sizes.a.sequence,
                                        row % sizes.a.sequence + tap - sizes.taps + 1);
    if (in == nullptr) {
      continue;
    }
    const W* const weight = scratch.taps.weights + tap * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      out[c] += weight[c] * static_cast<W>(in[c]);
    }
  }
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    out[c] *= vector_math::sigmoid(out[c]);
  }
}

/// The last `taps` inputs of a sequence, for the next run.
template <class T>
void move_window(const Sizes& sizes, const CacheArgs<T>& args, int64_t sequence) {
  const int64_t count = args.counts[sequence];
  for (int64_t i = 0; i < sizes.taps && count > 0; ++i) {
    const T* const from = convolved_input(sizes, args, sequence, count - sizes.taps + i);
    T* const to = args.window + (sequence * sizes.taps + i) * sizes.a.convolved();
    if (from == nullptr) {
      std::fill_n(to, sizes.a.convolved(), T(0));
    } else {
      std::copy_n(from, sizes.a.convolved(), to);
    }
  }
}

/// One row of one head: advances its state and writes y.
template <class T, class W = Wide<T>>
void advance_head(const Sizes& sizes, const CacheArgs<T>& args, const CacheScratch<T>& scratch,
                  int64_t row, int64_t head, W* state) {
  const Mamba2Attributes& a = sizes.a;
  const HeadWeights<W> weights(args.inputs, head);
  const HeadChunk<W> token = head_chunk(sizes, scratch.xbc, row, 1, head);
  const W raw = static_cast<W>(args.inputs.zxbcdt[row * a.row_elems() + a.dt_begin() + head]);
  const W dt = std::clamp(softplus(raw + weights.dt_bias), static_cast<W>(a.dt_min),
                          static_cast<W>(a.dt_max));
  const W decay = std::exp(dt * weights.a);
  T* const y = scratch.y + row * a.inner() + head * a.head_size;
  for (int64_t p = 0; p < a.head_size; ++p) {
    W* const s = state + p * a.state;
    const W factor = dt * token.x[p];
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < a.state; ++i) {
      s[i] = decay * s[i] + factor * token.b[i];
      sum += s[i] * token.c[i];
    }
    store(y, p, sum + weights.skip * token.x[p]);
  }
}

template <class T>
void run_head(const Sizes& sizes, const CacheArgs<T>& args, const CacheScratch<T>& scratch,
              int64_t item) {
  const int64_t sequence = item / sizes.a.heads;
  Wide<T>* const state = args.states + item * sizes.state_elems();
  if (args.begins[sequence] == 0 && args.counts[sequence] > 0) {
    std::fill_n(state, sizes.state_elems(), Wide<T>(0));
  }
  for (int64_t index = 0; index < args.counts[sequence]; ++index) {
    advance_head(sizes, args, scratch, sequence * sizes.a.sequence + index, item % sizes.a.heads,
                 state);
  }
}

template <class T>
void finish_row(const Sizes& sizes, const CacheArgs<T>& args, const CacheScratch<T>& scratch,
                int64_t row) {
  const Mamba2Attributes& a = sizes.a;
  T* const v = args.v + row * a.inner();
  if (row % a.sequence >= args.counts[row / a.sequence]) {
    std::fill_n(v, a.inner(), T(0));
    return;
  }
  norm_row(a, scratch.y + row * a.inner(), args.inputs.zxbcdt + row * a.row_elems(),
           args.inputs.norm_weight, scratch.rstd + row * a.norm_groups, v);
}

template <class T>
void run(const Sizes& sizes, const KernelArgs& kernel) {
  const CacheArgs<T> args(kernel, sizes.a);
  const CacheScratch<T> scratch(sizes, kernel.scratch.data());
  const auto for_each = [&](int64_t count, int64_t grain, const auto& item) {
    run_pieces(kernel.workers, count, grain, [&](int, int64_t at, int64_t end) {
      for (; at < end; ++at) {
        item(at);
      }
    });
  };
  scratch.taps.load(sizes, args.inputs);
  for_each(sizes.rows, row_grain(sizes.a.convolved()),
           [&](int64_t row) { convolve_token(sizes, args, scratch, row); });
  for_each(sizes.sequences(), row_grain(sizes.taps * sizes.a.convolved()),
           [&](int64_t sequence) { move_window(sizes, args, sequence); });
  for_each(sizes.sequences() * sizes.a.heads, row_grain(sizes.state_elems()),
           [&](int64_t item) { run_head(sizes, args, scratch, item); });
  for_each(sizes.rows, row_grain(sizes.a.inner()),
           [&](int64_t row) { finish_row(sizes, args, scratch, row); });
}

}  // namespace

CpuKernel make_cached_mamba2(const OpSpec& spec, int /*num_workers*/) {
  const Sizes sizes(spec, attributes_of<Mamba2Attributes>(spec));
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [sizes](const KernelArgs& args) { run<T>(sizes, args); },
            .scratch_bytes = CacheScratch<T>(sizes, nullptr).cursor.bytes()};
  });
}

}  // namespace braid
