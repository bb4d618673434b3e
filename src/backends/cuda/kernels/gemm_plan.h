#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/cuda/kernels/gemm.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "backends/cuda/library_error.h"

/// The cuBLASLt implementation of a product.
namespace braid {

inline constexpr uint32_t kGemmAlignment = 16;

/// One of cuBLASLt's algorithms for one plan.
struct GemmAlgorithm {
  cublasLtMatmulAlgo_t algorithm{};
  size_t scratch_bytes = 0;
};

/// Device pointers, 16-byte aligned; scales and bias are null if there are none.
struct GemmOperands {
  const void* a = nullptr;
  const void* scales_a = nullptr;
  const void* b = nullptr;
  const void* scales_b = nullptr;
  const void* bias = nullptr;
  void* d = nullptr;
  std::byte* scratch = nullptr;  ///< GemmAlgorithm::scratch_bytes
  cudaStream_t stream = nullptr;
};

/// A GemmProblem as cuBLASLt descriptors. A plain value, so copies are independent.
struct GemmPlan {
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t a{};
  cublasLtMatrixLayoutOpaque_t b{};
  cublasLtMatrixLayoutOpaque_t d{};
  float beta = 0;

  /// `sms`: multiprocessors on which it should run; 0: the library chooses.
  explicit GemmPlan(const GemmProblem& problem, int sms = 0);

  /// The bitwise repeatable suggestions of the library's heuristic, best first; at least one.
  std::vector<GemmAlgorithm> candidates(cublasLtHandle_t handle) const;

  void launch(cublasLtHandle_t handle, const GemmAlgorithm& algorithm,
              const GemmOperands& operands) const;
};

}  // namespace braid
