// The kernels are row-major: d^T [n,m] = op(b)^T op(a)^T, so they get the operands in exchanged
// order.
#include "backends/cuda/kernels/gemm_sm90.h"

#include <array>

#include "backends/cuda/kernels/fused_kernels.h"
#include "backends/cuda/kernels/sm90_products.h"

namespace braid {
namespace {

/// The kind that computes a problem, or "".
std::string_view kind_of(const GemmProblem& p) {
  if (p.input != DType::kBF16 || p.has_bias || p.stride_b != 0 || !is_whole_vectors(p.m)) {
    return "";
  }
  const bool overwrites_bf16 = p.output == DType::kBF16 && !p.accumulate;
  if (overwrites_bf16 && !p.transpose_b && is_whole_vectors(p.k)) {
    return p.transpose_a ? "product_nt" : "product_nn";
  }
  const bool adds_to_f32 = p.output == DType::kF32 && p.accumulate;
  if (adds_to_f32 && p.transpose_b && !p.transpose_a && is_whole_vectors(p.n)) {
    return "product_tn_added";
  }
  return "";
}

}  // namespace

std::vector<std::string> gemm_sm90_names(const GemmProblem& problem) {
  return sm90_product_names(kind_of(problem));
}

CudaKernel make_gemm_sm90(const GemmProblem& problem, std::string_view name, CudaContext& context) {
  const CudaKernel kernel =
      make_sm90_product(kind_of(problem), name, {problem.n, problem.m, problem.k}, context);
  return {.launch =
              [launch = kernel.launch](const CudaKernelArgs& args) {
                const std::array operands{args.operands[1], args.operands[0], args.operands[2]};
                launch({.operands = operands, .scratch = args.scratch, .stream = args.stream});
              },
          .scratch_bytes = kernel.scratch_bytes};
}

}  // namespace braid
