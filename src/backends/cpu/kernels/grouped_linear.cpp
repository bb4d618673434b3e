#include "ops/grouped_linear.h"

#include <functional>

#include "backends/cpu/kernels/expert_ranges.h"
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {
namespace {

template <class T>
CpuKernel linear_kernel(const OpSpec& spec, int num_workers) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t in = spec.operands[0].shape[1];
  const int64_t out = spec.operands[3].shape[1];
  const int64_t num_experts = spec.operands[2].shape[0] - 1;
  return {.run =
              [=](const KernelArgs& args) {
                const ExpertRanges ranges(args.data<const int32_t>(2), num_experts, rows);
                const auto product_of = [&](int64_t expert) {
                  const ExpertRange mine = ranges[expert];
                  return GemmArgs<T>{.transpose_b = true,
                                     .m = mine.count,
                                     .n = out,
                                     .k = in,
                                     .a = args.data<const T>(0) + mine.begin * in,
                                     .lda = in,
                                     .b = args.data<const T>(1) + expert * out * in,
                                     .ldb = in,
                                     .c = args.data<T>(3) + mine.begin * out,
                                     .ldc = out};
                };
                gemm_groups<T>(args.workers, num_experts, std::cref(product_of), args.scratch);
              },
          .scratch_bytes = gemm_scratch_bytes<T>(num_workers)};
}

template <class T>
CpuKernel dgrad_kernel(const OpSpec& spec, int num_workers) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t out = spec.operands[0].shape[1];
  const int64_t in = spec.operands[1].shape[1];
  const int64_t num_experts = spec.operands[2].shape[0] - 1;
  return {.run =
              [=](const KernelArgs& args) {
                const ExpertRanges ranges(args.data<const int32_t>(2), num_experts, rows);
                const auto product_of = [&](int64_t expert) {
                  const ExpertRange mine = ranges[expert];
                  return GemmArgs<T>{.m = mine.count,
                                     .n = in,
                                     .k = out,
                                     .a = args.data<const T>(0) + mine.begin * out,
                                     .lda = out,
                                     .b = args.data<const T>(1) + expert * out * in,
                                     .ldb = in,
                                     .c = args.data<T>(3) + mine.begin * in,
                                     .ldc = in};
                };
                gemm_groups<T>(args.workers, num_experts, std::cref(product_of), args.scratch);
              },
          .scratch_bytes = gemm_scratch_bytes<T>(num_workers)};
}

template <class T, class Grad>
CpuKernel wgrad_kernel(const OpSpec& spec, int num_workers) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t in = spec.operands[0].shape[1];
  const int64_t out = spec.operands[1].shape[1];
  const int64_t num_experts = spec.operands[2].shape[0] - 1;
  const double beta = attributes_of<GroupedWgradAttributes>(spec).accumulate ? 1.0 : 0.0;
  return {.run =
              [=](const KernelArgs& args) {
                const ExpertRanges ranges(args.data<const int32_t>(2), num_experts, rows);
                const auto product_of = [&](int64_t expert) {
                  const ExpertRange mine = ranges[expert];
                  return GemmArgs<T, Grad>{.transpose_a = true,
                                           .m = out,
                                           .n = in,
                                           .k = mine.count,
                                           .a = args.data<const T>(1) + mine.begin * out,
                                           .lda = out,
                                           .b = args.data<const T>(0) + mine.begin * in,
                                           .ldb = in,
                                           .c = args.data<Grad>(3) + expert * out * in,
                                           .ldc = in,
                                           .beta = beta};
                };
                gemm_groups<T, Grad>(args.workers, num_experts, std::cref(product_of),
                                     args.scratch);
              },
          .scratch_bytes = gemm_scratch_bytes<T, Grad>(num_workers)};
}

}  // namespace

CpuKernel make_grouped_linear(const OpSpec& spec, int num_workers) {
  return dispatch_dtype(spec, 0, [&]<class T>() { return linear_kernel<T>(spec, num_workers); });
}

CpuKernel make_grouped_linear_dgrad(const OpSpec& spec, int num_workers) {
  return dispatch_dtype(spec, 0, [&]<class T>() { return dgrad_kernel<T>(spec, num_workers); });
}

CpuKernel make_grouped_linear_wgrad(const OpSpec& spec, int num_workers) {
  return dispatch_main_grad(
      spec, 0, 3, [&]<class T, class Grad>() { return wgrad_kernel<T, Grad>(spec, num_workers); });
}

}  // namespace braid
