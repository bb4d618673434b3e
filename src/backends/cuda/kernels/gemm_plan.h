#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "backends/cuda/kernels/gemm.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "backends/cuda/library_error.h"

/// What gemm.cpp and the measurement of algorithms share.
namespace braid {

inline constexpr uint32_t kGemmAlignment = 16;

/// One of cuBLASLt's algorithms for one plan.
struct GemmAlgorithm {
  cublasLtMatmulAlgo_t algorithm{};
  size_t scratch_bytes = 0;
};

/// A GemmProblem in cuBLASLt's terms. A plain value, so copies are independent.
struct GemmPlan {
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t a{};
  cublasLtMatrixLayoutOpaque_t b{};
  cublasLtMatrixLayoutOpaque_t d{};
  float beta = 0;

  explicit GemmPlan(const GemmProblem& problem);

  /// What the library's heuristic suggests and is bitwise repeatable, its best guess first; at
  /// least one.
  std::vector<GemmAlgorithm> candidates(cublasLtHandle_t handle) const;

  void launch(cublasLtHandle_t handle, const GemmAlgorithm& algorithm,
              const GemmOperands& operands) const;
};

/// Times all candidates of the plan on the current device and returns the fastest. Of those that
/// cannot be told apart it takes the heuristic's favourite, so that the choice seldom changes
/// between runs.
GemmAlgorithm fastest_algorithm(const GemmPlan& plan, const GemmProblem& problem,
                                cublasLtHandle_t handle);

}  // namespace braid
