#include "backends/cpu/kernels/column_sums.h"
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"
#include "ops/norm.h"

// With h = (x - mean) rstd and g = dy (w + weight_offset), per row:
//   layernorm: dx = rstd (g - mean(g) - h mean(g h));  rmsnorm: mean = 0 and without mean(g)
//   dw = sum over rows of dy h;  db = sum over rows of dy
namespace braid {
namespace {

/// Operands of the two backward ops; null if an op lacks one.
template <class T>
struct NormBackward {
  const T* x = nullptr;           // [N,C]
  const T* w = nullptr;           // [C]
  const Wide<T>* mean = nullptr;  // [N]
  const Wide<T>* rstd = nullptr;  // [N]
  const T* dy = nullptr;          // [N,C]
  const T* d_sum = nullptr;       // [N,C]
  T* dx = nullptr;                // [N,C]
  Wide<T>* dw = nullptr;          // [C]
  Wide<T>* db = nullptr;          // [C]
  Wide<T> offset = 0;             // of w
};

template <class W>
struct RowMeans {
  W g = 0;   // mean of dy w
  W gh = 0;  // mean of dy w h
};

/// Also adds the row's contribution to dw and db.
template <bool kCentred, class T, class W = Wide<T>>
RowMeans<W> reduce_row(const NormBackward<T>& o, int64_t n, W mean, W rstd, int64_t width, W* dw,
                       W* db) {
  const T* const x = o.x + n * width;
  const T* const dy = o.dy + n * width;
  W sum_g = 0;
  W sum_gh = 0;
#pragma omp simd reduction(+ : sum_g, sum_gh)
  for (int64_t c = 0; c < width; ++c) {
    const W h = (static_cast<W>(x[c]) - mean) * rstd;
    const W d = dy[c];
    const W g = d * (static_cast<W>(o.w[c]) + o.offset);
    sum_gh += g * h;
    dw[c] += d * h;
    if constexpr (kCentred) {
      sum_g += g;
      db[c] += d;
    }
  }
  return {sum_g / static_cast<W>(width), sum_gh / static_cast<W>(width)};
}

template <bool kCentred, class T, class W = Wide<T>>
void write_dx(const NormBackward<T>& o, int64_t n, int64_t width, W mean, W rstd,
              RowMeans<W> means) {
  const T* const x = o.x + n * width;
  const T* const dy = o.dy + n * width;
  T* const dx = o.dx + n * width;
  const auto slope = [&](int64_t c) {
    const W h = (static_cast<W>(x[c]) - mean) * rstd;
    const W g = static_cast<W>(dy[c]) * (static_cast<W>(o.w[c]) + o.offset);
    return rstd * (g - h * means.gh - (kCentred ? means.g : W(0)));
  };
  if (o.d_sum == nullptr) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      store(dx, c, slope(c));
    }
  } else {
    const T* const d_sum = o.d_sum + n * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      store(dx, c, slope(c) + static_cast<W>(d_sum[c]));
    }
  }
}

/// Operands in the order in which ops/norm.h lists them.
template <bool kCentred, class T>
NormBackward<T> backward_operands(const KernelArgs& args,
                                  const NormBackwardAttributes& attributes) {
  size_t next = 0;
  NormBackward<T> o;
  o.offset = static_cast<Wide<T>>(attributes.offset.weight_offset);
  o.x = args.data<const T>(next++);
  o.w = args.data<const T>(next++);
  o.mean = kCentred ? args.data<const Wide<T>>(next++) : nullptr;
  o.rstd = args.data<const Wide<T>>(next++);
  o.dy = args.data<const T>(next++);
  o.d_sum = attributes.has_d_sum ? args.data<const T>(next++) : nullptr;
  o.dx = args.data<T>(next++);
  o.dw = args.data<Wide<T>>(next++);
  o.db = kCentred ? args.data<Wide<T>>(next++) : nullptr;
  return o;
}

/// One block of rows: dx, and the block's sums of dw and (layernorm) db.
template <bool kCentred, class T, class W = Wide<T>>
void backward_block(const NormBackward<T>& o, int64_t begin, int64_t end, int64_t width, W* dw,
                    W* db) {
  std::fill_n(dw, width, W(0));
  if constexpr (kCentred) {
    std::fill_n(db, width, W(0));
  }
  for (int64_t n = begin; n < end; ++n) {
    const W mean = kCentred ? o.mean[n] : W(0);
    const W rstd = o.rstd[n];
    const auto means = reduce_row<kCentred>(o, n, mean, rstd, width, dw, db);
    write_dx<kCentred>(o, n, width, mean, rstd, means);
  }
}

template <bool kCentred, class T>
void run_backward(const KernelArgs& args, const NormBackward<T>& o, int64_t rows, int64_t width,
                  bool accumulate) {
  using W = Wide<T>;
  const RowBlocks blocks{rows};
  W* const dw = reinterpret_cast<W*>(args.scratch.data());
  W* const db = reinterpret_cast<W*>(args.scratch.data() + partial_sums_bytes<W>(rows, width));
  const int64_t grain = row_grain(blocks.rows_per_block() * width);
  run_pieces(args.workers, blocks.count(), grain, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      backward_block<kCentred>(o, blocks.begin(i), blocks.end(i), width, dw + i * width,
                               kCentred ? db + i * width : nullptr);
    }
  });
  add_partial_sums(args.workers, dw, blocks.count(), width, accumulate, o.dw);
  if constexpr (kCentred) {
    add_partial_sums(args.workers, db, blocks.count(), width, accumulate, o.db);
  }
}

template <bool kCentred, class T>
CpuKernel backward_kernel(const OpSpec& spec) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t width = spec.operands[0].shape[1];
  const auto attributes = attributes_of<NormBackwardAttributes>(spec);
  return {.run =
              [=](const KernelArgs& args) {
                run_backward<kCentred>(args, backward_operands<kCentred, T>(args, attributes), rows,
                                       width, attributes.accumulate);
              },
          .scratch_bytes = partial_sums_bytes<Wide<T>>(rows, width) * (kCentred ? 2 : 1)};
}

}  // namespace

CpuKernel make_rmsnorm_backward(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_dtype(spec, 0, [&]<class T>() { return backward_kernel<false, T>(spec); });
}

CpuKernel make_layernorm_backward(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_dtype(spec, 0, [&]<class T>() { return backward_kernel<true, T>(spec); });
}

}  // namespace braid
