#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/kernels/gemm.h"

/// The products of sm90_products.h that do what cuBLASLt does: bf16 without a bias, and bf16 into
/// fp32 sums.
namespace braid {

/// Names of the kernels for a problem; none where there is a bias, another dtype or layout, or a
/// row is not whole vectors.
std::vector<std::string> gemm_sm90_names(const GemmProblem& problem);

/// One of them; operands as make_gemm's.
CudaKernel make_gemm_sm90(const GemmProblem& problem, std::string_view name, CudaContext& context);

}  // namespace braid
