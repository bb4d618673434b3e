#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "backends/cuda/cuda_context.h"
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

/// Device pointers, 16-byte aligned; bias is null where there is none.
struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* d = nullptr;
  std::byte* scratch = nullptr;  ///< Gemm::scratch_bytes
  cudaStream_t stream = nullptr;
};

struct Gemm {
  std::function<void(const GemmOperands&)> launch;
  size_t scratch_bytes = 0;
};

/// A GEMM by cuBLASLt with the algorithm that was measured to be the fastest among its heuristic's
/// suggestions, under steady load where the product is large; the measurement (random operands that
/// do not stay in L2, some 0.1 s, 1 to 2 s for large products, and the memory of the operands) runs
/// once per problem, device and library version and is remembered in `context.algorithms()`.
///
/// Bitwise repeatable: only algorithms without a split of k, or whose partial sums are kept in fp32
/// and added in a second step, are considered. Another algorithm may round differently, so runs
/// agree bitwise where they share a cache folder. Throws InternalError where cuBLASLt has no
/// algorithm.
Gemm make_gemm(const GemmProblem& problem, CudaContext& context);

}  // namespace braid
