#include "ops/head_norm.h"

#include <cmath>

#include "backends/cpu/kernels/column_sums.h"
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

// With h = x rstd and g = dy (w + weight_offset), per normalised run of a row:
//   dx = rstd (g - h mean(g h));  dw = sum of dy h over rows, and over heads that share a weight
namespace braid {
namespace {

/// The runs of a row that are normalised together; values follow them.
struct HeadRuns {
  int64_t row = 0;          ///< elements of a row
  int64_t normed = 0;       ///< of these, of queries and keys
  int64_t num_query = 0;    ///< runs of queries; the others are of keys
  int64_t count = 0;        ///< runs of a row
  int64_t query_width = 0;  ///< of a run of queries, and of their weight
  int64_t key_width = 0;
  double offset = 0;  ///< of weights

  template <class Attributes>
  explicit HeadRuns(const Attributes& a)
      : row((a.heads + 2 * a.kv_heads) * a.head_size),
        normed((a.heads + a.kv_heads) * a.head_size),
        num_query(a.whole ? 1 : a.heads),
        count(a.whole ? 2 : a.heads + a.kv_heads),
        query_width((a.whole ? a.heads : 1) * a.head_size),
        key_width((a.whole ? a.kv_heads : 1) * a.head_size),
        offset(a.offset.weight_offset) {}

  bool is_query(int64_t run) const { return run < num_query; }
  int64_t width(int64_t run) const { return is_query(run) ? query_width : key_width; }
  int64_t begin(int64_t run) const {
    return is_query(run) ? run * query_width
                         : num_query * query_width + (run - num_query) * key_width;
  }
};

/// What all runs of a norm have in common.
struct RunNorm {
  double epsilon = 0;
  double offset = 0;
};

template <class T>
Wide<T> norm_run(const T* x, const T* w, int64_t width, const RunNorm& norm, T* y) {
  using W = Wide<T>;
  const W offset(norm.offset);
  W squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < width; ++c) {
    squares += static_cast<W>(x[c]) * static_cast<W>(x[c]);
  }
  const W rstd = W(1) / std::sqrt(squares / static_cast<W>(width) + W(norm.epsilon));
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    store(y, c, static_cast<W>(x[c]) * rstd * (static_cast<W>(w[c]) + offset));
  }
  return rstd;
}

template <class T>
CpuKernel forward_kernel(const OpSpec& spec) {
  const auto attributes = attributes_of<HeadNormAttributes>(spec);
  const HeadRuns runs(attributes);
  const int64_t rows = spec.operands[0].shape[0];
  const RunNorm norm{.epsilon = attributes.epsilon, .offset = runs.offset};
  return {.run = [=](const KernelArgs& args) {
    const T* const qkv = args.data<const T>(0);
    const T* const weights[] = {args.data<const T>(1), args.data<const T>(2)};
    T* const y = args.data<T>(3);
    auto* const rstd = args.data<Wide<T>>(4);
    run_pieces(args.workers, rows, row_grain(runs.row), [&](int, int64_t n, int64_t end) {
      for (; n < end; ++n) {
        for (int64_t run = 0; run < runs.count; ++run) {
          const int64_t at = n * runs.row + runs.begin(run);
          rstd[n * runs.count + run] = norm_run(qkv + at, weights[runs.is_query(run) ? 0 : 1],
                                                runs.width(run), norm, y + at);
        }
        std::copy(qkv + n * runs.row + runs.normed, qkv + (n + 1) * runs.row,
                  y + n * runs.row + runs.normed);
      }
    });
  }};
}

/// Operands in the order in which ops/head_norm.h lists them.
template <class T>
struct BackwardOperands {
  const T* qkv = nullptr;         // [N, row]
  const T* weights[2] = {};       // of queries, of keys
  const Wide<T>* rstd = nullptr;  // [N, runs]
  const T* dy = nullptr;          // [N, row]
  T* d_qkv = nullptr;             // [N, row]
  Wide<T>* sums[2] = {};          // gradients of the weights

  explicit BackwardOperands(const KernelArgs& args)
      : qkv(args.data<const T>(0)),
        weights{args.data<const T>(1), args.data<const T>(2)},
        rstd(args.data<const Wide<T>>(3)),
        dy(args.data<const T>(4)),
        d_qkv(args.data<T>(5)),
        sums{args.data<Wide<T>>(6), args.data<Wide<T>>(7)} {}
};

/// One run: its part of d_qkv, and its addends of the weight's gradient.
template <class T, class W = Wide<T>>
void backward_run(const BackwardOperands<T>& o, const HeadRuns& runs, int64_t n, int64_t run,
                  W* dw) {
  const int64_t at = n * runs.row + runs.begin(run);
  const int64_t width = runs.width(run);
  const T* const x = o.qkv + at;
  const T* const w = o.weights[runs.is_query(run) ? 0 : 1];
  const T* const dy = o.dy + at;
  T* const dx = o.d_qkv + at;
  const W rstd = o.rstd[n * runs.count + run];
  const W offset(runs.offset);
  W sum_gh = 0;
#pragma omp simd reduction(+ : sum_gh)
  for (int64_t c = 0; c < width; ++c) {
    const W h = static_cast<W>(x[c]) * rstd;
    const W d = dy[c];
    sum_gh += d * (static_cast<W>(w[c]) + offset) * h;
    dw[c] += d * h;
  }
  const W mean_gh = sum_gh / static_cast<W>(width);
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    const W h = static_cast<W>(x[c]) * rstd;
    const W g = static_cast<W>(dy[c]) * (static_cast<W>(w[c]) + offset);
    store(dx, c, rstd * (g - h * mean_gh));
  }
}

template <class T>
void backward_row(const HeadRuns& runs, const BackwardOperands<T>& o, int64_t n,
                  Wide<T>* const (&partials)[2]) {
  const int64_t row = n * runs.row;
  for (int64_t run = 0; run < runs.count; ++run) {
    backward_run(o, runs, n, run, partials[runs.is_query(run) ? 0 : 1]);
  }
  std::copy(o.dy + row + runs.normed, o.dy + row + runs.row, o.d_qkv + row + runs.normed);
}

template <class T>
void run_backward(const HeadRuns& runs, int64_t rows, bool accumulate, const KernelArgs& args) {
  using W = Wide<T>;
  const BackwardOperands<T> o(args);
  const RowBlocks blocks{rows};
  const int64_t widths[] = {runs.query_width, runs.key_width};
  W* const partials[] = {
      reinterpret_cast<W*>(args.scratch.data()),
      reinterpret_cast<W*>(args.scratch.data() + partial_sums_bytes<W>(rows, runs.query_width))};
  const int64_t grain = row_grain(blocks.rows_per_block() * runs.row);
  run_pieces(args.workers, blocks.count(), grain, [&](int, int64_t block, int64_t end) {
    for (; block < end; ++block) {
      W* const mine[] = {partials[0] + block * widths[0], partials[1] + block * widths[1]};
      std::fill_n(mine[0], widths[0], W(0));
      std::fill_n(mine[1], widths[1], W(0));
      for (int64_t n = blocks.begin(block); n < blocks.end(block); ++n) {
        backward_row(runs, o, n, mine);
      }
    }
  });
  for (const size_t kind : {0, 1}) {
    add_partial_sums(args.workers, partials[kind], blocks.count(), widths[kind], accumulate,
                     o.sums[kind]);
  }
}

template <class T>
CpuKernel backward_kernel(const OpSpec& spec) {
  const auto attributes = attributes_of<HeadNormBackwardAttributes>(spec);
  const HeadRuns runs(attributes);
  const int64_t rows = spec.operands[0].shape[0];
  return {
      .run =
          [=](const KernelArgs& args) { run_backward<T>(runs, rows, attributes.accumulate, args); },
      .scratch_bytes = partial_sums_bytes<Wide<T>>(rows, runs.query_width) +
                       partial_sums_bytes<Wide<T>>(rows, runs.key_width)};
}

}  // namespace

CpuKernel make_head_norm(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_dtype(spec, 0, [&]<class T>() { return forward_kernel<T>(spec); });
}

CpuKernel make_head_norm_backward(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_dtype(spec, 0, [&]<class T>() { return backward_kernel<T>(spec); });
}

}  // namespace braid
