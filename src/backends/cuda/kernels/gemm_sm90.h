#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/kernels/gemm.h"

/// The products of sm90_products.h that compute the same as cuBLASLt: bf16 without a bias, and bf16
/// into fp32 sums.
namespace braid {

/// Names of the kernels for a problem; empty if it has a bias, another dtype or layout, or rows
/// that are not whole vectors.
std::vector<std::string> gemm_sm90_names(const GemmProblem& problem);

/// Makes one of them; operands as for make_gemm.
CudaKernel make_gemm_sm90(const GemmProblem& problem, std::string_view name, CudaContext& context);

}  // namespace braid
