#include "backends/cpu/kernels/column_sums.h"
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/row_bias.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"
#include "ops/router.h"

// The two backward products mix d_logits in the accumulator type with weights and rows of the type
// of activations, for which the library has no product. Both are small.
namespace braid {
namespace {

constexpr int64_t kTile = 128;  ///< columns that are summed at a time

template <class T>
CpuKernel forward_kernel(const OpSpec& spec, int num_workers) {
  using W = Wide<T>;
  const Shape& x = spec.operands[0].shape;
  const int64_t rows = x[0];
  const int64_t experts = spec.operands[1].shape[0];
  const bool has_bias = attributes_of<RouterLinearAttributes>(spec).bias.has_logit_bias;
  const GemmArgs<T, W> sizes{.transpose_b = true,
                             .m = x[0],
                             .n = experts,
                             .k = x[1],
                             .lda = x[1],
                             .ldb = x[1],
                             .ldc = experts,
                             .beta = has_bias ? 1.0 : 0.0};
  return {.run =
              [=](const KernelArgs& args) {
                auto product = sizes;
                product.a = args.data<const T>(0);
                product.b = args.data<const T>(1);
                product.c = args.data<W>(has_bias ? 3 : 2);
                if (has_bias) {
                  fill_rows(args.workers, args.data<const W>(2), rows, experts, product.c);
                }
                gemm(args.workers, product, args.scratch);
              },
          .scratch_bytes = gemm_scratch_bytes<T, W>(num_workers)};
}

/// One row of dx: sums over experts in ascending order, rounded once.
template <class T>
void dgrad_row(const Wide<T>* d_logits, const T* w, int64_t experts, int64_t width, bool accumulate,
               T* dx) {
  using W = Wide<T>;
  W sums[kTile];
  for (int64_t begin = 0; begin < width; begin += kTile) {
    const int64_t count = std::min(kTile, width - begin);
    for (int64_t i = 0; i < count; ++i) {
      sums[i] = accumulate ? static_cast<W>(dx[begin + i]) : W(0);
    }
    for (int64_t e = 0; e < experts; ++e) {
      const T* const row = w + e * width + begin;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        sums[i] += d_logits[e] * static_cast<W>(row[i]);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      store(dx, begin + i, sums[i]);
    }
  }
}

template <class T>
CpuKernel dgrad_kernel(const OpSpec& spec) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t experts = spec.operands[1].shape[0];
  const int64_t width = spec.operands[1].shape[1];
  const bool accumulate = attributes_of<RouterGradAttributes>(spec).accumulate;
  return {.run = [=](const KernelArgs& args) {
    const auto* const d_logits = args.data<const Wide<T>>(0);
    const T* const w = args.data<const T>(1);
    T* const dx = args.data<T>(2);
    run_pieces(args.workers, rows, row_grain(width * experts), [&](int, int64_t n, int64_t end) {
      for (; n < end; ++n) {
        dgrad_row(d_logits + n * experts, w, experts, width, accumulate, dx + n * width);
      }
    });
  }};
}

/// Columns [begin, end) of dw: sums over rows in ascending order.
template <class T>
void wgrad_columns(const T* x, const Wide<T>* d_logits, int64_t rows, int64_t width,
                   int64_t experts, int64_t begin, int64_t end, Wide<T>* dw) {
  for (int64_t n = 0; n < rows; ++n) {
    const T* const row = x + n * width;
    for (int64_t e = 0; e < experts; ++e) {
      const Wide<T> d = d_logits[n * experts + e];
      Wide<T>* const sums = dw + e * width;
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) {
        sums[c] += d * static_cast<Wide<T>>(row[c]);
      }
    }
  }
}

template <class T>
CpuKernel wgrad_kernel(const OpSpec& spec) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t width = spec.operands[0].shape[1];
  const int64_t experts = spec.operands[1].shape[1];
  const auto attributes = attributes_of<RouterWgradAttributes>(spec);
  const bool has_bias = attributes.bias.has_logit_bias;
  const auto run = [=, accumulate = attributes.accumulate](const KernelArgs& args) {
    const T* const x = args.data<const T>(0);
    const auto* const d_logits = args.data<const Wide<T>>(1);
    auto* const dw = args.data<Wide<T>>(2);
    if (!accumulate) {
      std::fill_n(dw, experts * width, Wide<T>(0));
    }
    run_pieces(args.workers, width, kTile, [&](int, int64_t begin, int64_t end) {
      for (; begin < end; begin += kTile) {
        wgrad_columns(x, d_logits, rows, width, experts, begin, std::min(end, begin + kTile), dw);
      }
    });
    if (has_bias) {
      column_sums(args.workers, d_logits, rows, experts, accumulate,
                  reinterpret_cast<Wide<T>*>(args.scratch.data()), args.data<Wide<T>>(3));
    }
  };
  return {.run = run, .scratch_bytes = has_bias ? partial_sums_bytes<Wide<T>>(rows, experts) : 0};
}

}  // namespace

CpuKernel make_router_linear(const OpSpec& spec, int num_workers) {
  return dispatch_dtype(spec, 0, [&]<class T>() { return forward_kernel<T>(spec, num_workers); });
}

CpuKernel make_router_linear_dgrad(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_dtype(spec, 1, [&]<class T>() { return dgrad_kernel<T>(spec); });
}

CpuKernel make_router_linear_wgrad(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_dtype(spec, 0, [&]<class T>() { return wgrad_kernel<T>(spec); });
}

}  // namespace braid
