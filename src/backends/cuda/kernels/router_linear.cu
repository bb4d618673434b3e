// Row-major y = x w^T is column-major y^T = w x^T, so cuBLASLt gets the operands in exchanged
// order.
#include <array>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/bias_grad.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/gemm.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "ops/attributes.h"
#include "ops/router.h"

// The forward multiplies bf16 factors and writes f32 sums, which cuBLASLt does. No library
// multiplies f32 d_logits and bf16 factors, so d_logits are split into two bf16 parts, high = d
// rounded and low = d - high rounded, on which tensor cores work: high + low differs from d by at
// most 2^-16 of it. dx is one product of depth 2 E, [high low] with the weight twice, so that it is
// rounded once; dw is the sum of two products in f32. The gradient of a bias sums d_logits as they
// are.
namespace braid {
namespace {

struct SplitArgs {
  const float* d_logits = nullptr;  // f32 [T,E]
  Bf16* high = nullptr;             // bf16 [T,E], rows `stride` elements apart
  Bf16* low = nullptr;              // the same
  int64_t count = 0;                // T E
  int64_t experts = 0;
  int64_t stride = 0;
};

__global__ void __launch_bounds__(256) split_kernel(SplitArgs args) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < args.count) {
    const int64_t row = i / args.experts;
    const int64_t at = row * args.stride + (i - row * args.experts);
    const float d = args.d_logits[i];
    const Bf16 high = narrow<Bf16>(d);
    args.high[at] = high;
    args.low[at] = narrow<Bf16>(d - widen(high));
  }
}

void split(const SplitArgs& args, cudaStream_t stream) {
  split_kernel<<<grid_of(ceil_div(args.count, 256)), 256, 0, stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

struct Sizes {
  int64_t rows = 0;
  int64_t experts = 0;
  int64_t width = 0;
};

GemmProblem dgrad_problem(const Sizes& s, DType dtype, bool accumulate) {
  return {.m = s.width,
          .n = s.rows,
          .k = dtype == DType::kBF16 ? 2 * s.experts : s.experts,
          .input = dtype,
          .output = dtype,
          .accumulate = accumulate};
}

GemmProblem wgrad_problem(const Sizes& s, DType dtype, bool accumulate) {
  return {.transpose_b = true,
          .m = s.width,
          .n = s.experts,
          .k = s.rows,
          .input = dtype,
          .output = DType::kF32,
          .accumulate = accumulate};
}

/// One product of operands of one type, and perhaps a bias.
template <size_t kOperands>
CudaKernel product(const CudaKernel& gemm, std::array<size_t, kOperands> order) {
  return {.launch =
              [gemm, order](const CudaKernelArgs& args) {
                std::array<std::byte*, kOperands> operands;
                for (size_t i = 0; i < kOperands; ++i) {
                  operands[i] = args.operands[order[i]];
                }
                gemm.launch({.operands = operands, .scratch = args.scratch, .stream = args.stream});
              },
          .scratch_bytes = gemm.scratch_bytes};
}

/// Scratch: [high low] of each row, the weight twice, and what the product needs.
CudaKernel split_dgrad(const Sizes& s, const CudaKernel& gemm) {
  const RouterDgradScratch scratch(s.rows, s.experts, s.width);
  return {.launch =
              [s, gemm, scratch](const CudaKernelArgs& args) {
                auto* const parts = reinterpret_cast<Bf16*>(args.scratch);
                std::byte* const weights = args.scratch + scratch.weights_at;
                split({.d_logits = args.data<const float>(0),
                       .high = parts,
                       .low = parts + s.experts,
                       .count = s.rows * s.experts,
                       .experts = s.experts,
                       .stride = 2 * s.experts},
                      args.stream);
                const auto bytes = static_cast<size_t>(s.experts * s.width) * sizeof(Bf16);
                for (const size_t copy : {0, 1}) {
                  BRAID_CUDA_CHECK(cudaMemcpyAsync(weights + copy * bytes, args.operands[1], bytes,
                                                   cudaMemcpyDeviceToDevice, args.stream));
                }
                const std::array operands{weights, args.scratch, args.operands[2]};
                gemm.launch({.operands = operands,
                             .scratch = args.scratch + scratch.product_at,
                             .stream = args.stream});
              },
          .scratch_bytes = scratch.product_at + gemm.scratch_bytes};
}

/// Scratch: the high parts, the low parts, and what the products need.
CudaKernel split_wgrad(const Sizes& s, const CudaKernel& first, const CudaKernel& second) {
  const size_t part_bytes = product_in_scratch_bytes(s.rows, s.experts, sizeof(Bf16));
  return {.launch =
              [s, first, second, part_bytes](const CudaKernelArgs& args) {
                std::byte* const low = args.scratch + part_bytes;
                std::byte* const scratch = args.scratch + 2 * part_bytes;
                split({.d_logits = args.data<const float>(1),
                       .high = reinterpret_cast<Bf16*>(args.scratch),
                       .low = reinterpret_cast<Bf16*>(low),
                       .count = s.rows * s.experts,
                       .experts = s.experts,
                       .stride = s.experts},
                      args.stream);
                const std::array of_high{args.operands[0], args.scratch, args.operands[2]};
                first.launch({.operands = of_high, .scratch = scratch, .stream = args.stream});
                const std::array of_low{args.operands[0], low, args.operands[2]};
                second.launch({.operands = of_low, .scratch = scratch, .stream = args.stream});
              },
          .scratch_bytes = 2 * part_bytes + std::max(first.scratch_bytes, second.scratch_bytes)};
}

/// The gradient of the weight, then that of the bias, which uses the same scratch.
CudaKernel with_bias_grad(const Sizes& s, bool accumulate, const CudaKernel& wgrad) {
  return {
      .launch =
          [s, accumulate, wgrad](const CudaKernelArgs& args) {
            wgrad.launch(args);
            bias_grad({.dy = args.operands[1],
                       .dtype = DType::kF32,
                       .rows = s.rows,
                       .columns = s.experts,
                       .accumulate = accumulate,
                       .db = args.data<float>(3),
                       .scratch = reinterpret_cast<float*>(args.scratch)},
                      args.stream);
          },
      .scratch_bytes = std::max(wgrad.scratch_bytes, bias_grad_scratch_bytes(s.rows, s.experts))};
}

}  // namespace

CudaKernel make_cuda_router_linear(const OpSpec& spec, CudaContext& context) {
  const OperandSpec& x = spec.operands[0];
  const bool has_bias = attributes_of<RouterLinearAttributes>(spec).bias.has_logit_bias;
  const CudaKernel gemm = make_gemm({.transpose_a = true,
                                     .m = spec.operands[1].shape[0],
                                     .n = x.shape[0],
                                     .k = x.shape[1],
                                     .input = x.dtype,
                                     .output = DType::kF32,
                                     .has_bias = has_bias},
                                    context);
  return has_bias ? product<4>(gemm, {1, 0, 2, 3}) : product<3>(gemm, {1, 0, 2});
}

CudaKernel make_cuda_router_linear_dgrad(const OpSpec& spec, CudaContext& context) {
  const OperandSpec& w = spec.operands[1];
  const Sizes s{spec.operands[0].shape[0], w.shape[0], w.shape[1]};
  const bool accumulate = attributes_of<RouterGradAttributes>(spec).accumulate;
  const CudaKernel gemm = make_gemm(dgrad_problem(s, w.dtype, accumulate), context);
  return w.dtype == DType::kBF16 ? split_dgrad(s, gemm) : product<3>(gemm, {1, 0, 2});
}

CudaKernel make_cuda_router_linear_wgrad(const OpSpec& spec, CudaContext& context) {
  const OperandSpec& x = spec.operands[0];
  const Sizes s{x.shape[0], spec.operands[1].shape[1], x.shape[1]};
  const auto attributes = attributes_of<RouterWgradAttributes>(spec);
  const CudaKernel gemm = make_gemm(wgrad_problem(s, x.dtype, attributes.accumulate), context);
  const CudaKernel wgrad =
      x.dtype == DType::kBF16
          ? split_wgrad(s, gemm, make_gemm(wgrad_problem(s, x.dtype, true), context))
          : product<3>(gemm, {0, 1, 2});
  return attributes.bias.has_logit_bias ? with_bias_grad(s, attributes.accumulate, wgrad) : wgrad;
}

}  // namespace braid
