#include "ops/linear.h"

#include "backends/cpu/kernels/column_sums.h"
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/row_bias.h"
#include "ops/attributes.h"

namespace braid {
namespace {

template <class T>
CpuKernel linear_kernel(const OpSpec& spec, int num_workers) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t in = spec.operands[0].shape[1];
  const int64_t out = spec.operands[1].shape[0];
  const auto attributes = attributes_of<LinearAttributes>(spec);
  const size_t result = attributes.has_bias ? 3 : 2;
  const bool adds_bias = attributes.has_bias && attributes.adds_bias;
  return {.run =
              [=](const KernelArgs& args) {
                T* const y = args.data<T>(result);
                if (adds_bias) {
                  fill_rows(args.workers, args.data<const T>(2), rows, out, y);
                }
                gemm(args.workers,
                     GemmArgs<T>{.transpose_b = true,
                                 .m = rows,
                                 .n = out,
                                 .k = in,
                                 .a = args.data<const T>(0),
                                 .lda = in,
                                 .b = args.data<const T>(1),
                                 .ldb = in,
                                 .c = y,
                                 .ldc = out,
                                 .beta = adds_bias ? 1.0 : 0.0},
                     args.scratch);
              },
          .scratch_bytes = gemm_scratch_bytes<T>(num_workers)};
}

template <class T>
CpuKernel linear_dgrad_kernel(const OpSpec& spec, int num_workers) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t out = spec.operands[1].shape[0];
  const int64_t in = spec.operands[1].shape[1];
  const bool accumulate = attributes_of<LinearDgradAttributes>(spec).accumulate;
  return {.run =
              [=](const KernelArgs& args) {
                gemm(args.workers,
                     GemmArgs<T>{.m = rows,
                                 .n = in,
                                 .k = out,
                                 .a = args.data<const T>(0),
                                 .lda = out,
                                 .b = args.data<const T>(1),
                                 .ldb = in,
                                 .c = args.data<T>(2),
                                 .ldc = in,
                                 .beta = accumulate ? 1.0 : 0.0},
                     args.scratch);
              },
          .scratch_bytes = gemm_scratch_bytes<T>(num_workers)};
}

template <class T, class Grad>
CpuKernel linear_wgrad_kernel(const OpSpec& spec, int num_workers) {
  using W = Wide<T>;
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t in = spec.operands[0].shape[1];
  const int64_t out = spec.operands[1].shape[1];
  const int64_t features = spec.operands[2].shape[0];  // a slice of out, or all
  const auto attributes = attributes_of<LinearWgradAttributes>(spec);
  const size_t sums_bytes = attributes.has_bias ? partial_sums_bytes<W>(rows, out) : 0;
  return {.run =
              [=](const KernelArgs& args) {
                const T* const dy = args.data<const T>(1);
                if (attributes.has_bias) {
                  column_sums(args.workers, dy, rows, out, attributes.accumulate,
                              reinterpret_cast<W*>(args.scratch.data()), args.data<Grad>(3));
                }
                gemm(args.workers,
                     GemmArgs<T, Grad>{.transpose_a = true,
                                       .m = features,
                                       .n = in,
                                       .k = rows,
                                       .a = dy + attributes.features.first_feature,
                                       .lda = out,
                                       .b = args.data<const T>(0),
                                       .ldb = in,
                                       .c = args.data<Grad>(2),
                                       .ldc = in,
                                       .beta = attributes.accumulate ? 1.0 : 0.0},
                     args.scratch);
              },
          // The sums end before the product uses the same memory.
          .scratch_bytes = std::max(sums_bytes, gemm_scratch_bytes<T, Grad>(num_workers))};
}

}  // namespace

CpuKernel make_linear(const OpSpec& spec, int num_workers) {
  return dispatch_dtype(spec, 0, [&]<class T>() { return linear_kernel<T>(spec, num_workers); });
}

CpuKernel make_linear_dgrad(const OpSpec& spec, int num_workers) {
  return dispatch_dtype(spec, 0,
                        [&]<class T>() { return linear_dgrad_kernel<T>(spec, num_workers); });
}

CpuKernel make_linear_wgrad(const OpSpec& spec, int num_workers) {
  return dispatch_main_grad(spec, 0, 2, [&]<class T, class Grad>() {
    return linear_wgrad_kernel<T, Grad>(spec, num_workers);
  });
}

}  // namespace braid
