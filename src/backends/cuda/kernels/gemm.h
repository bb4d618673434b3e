#pragma once

#include <cstdint>
#include <vector>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/kernel.h"
#include "backends/cuda/kernels/fastest_kernel.h"
#include "base/dtype.h"

namespace braid {

/// d = op(a) op(b) (+ bias) or d += op(a) op(b), column-major as cuBLASLt sees it: op(a) [m,k],
/// op(b) [k,n], d [m,n], all dense but b, which may be some rows of a taller matrix. Arithmetic and
/// accumulation are fp32 (no TF32 for f32 operands); bias [m] has the type of d and is added to
/// each column. Where bias or the old d is added, some algorithms round the product to d's type
/// first.
struct GemmProblem {
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t stride_b = 0;  ///< elements from one stored column of b to the next; 0: dense
  DType input = DType::kBF16;
  DType output = DType::kBF16;
  bool has_bias = false;
  bool accumulate = false;
};

/// Ways to compute it: cuBLASLt's heuristic's suggestions, then gemm_sm90.h's. Operands: a, b, the
/// bias where there is one, d; all 16-byte aligned.
///
/// All are bitwise repeatable: only algorithms without a split of k, or whose partial sums are kept
/// in fp32 and added in a second step, are considered. Throws InternalError where cuBLASLt has
/// none.
std::vector<NamedKernel> gemm_candidates(const GemmProblem& problem, CudaContext& context);

/// The one that was measured to be the fastest (fastest_kernel.h), once per problem, device and
/// versions of the libraries. Another may round differently, so runs agree bitwise where they share
/// a cache folder.
CudaKernel make_gemm(const GemmProblem& problem, CudaContext& context);

}  // namespace braid
