#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/kernel.h"
#include "backends/cuda/kernels/fastest_kernel.h"
#include "base/dtype.h"

namespace braid {

/// Scales of a factor: none, or, for FP8 elements, a layout of ops/quantize.h: one for all, one for
/// each run of 128 elements along k, or one for each square of 128 x 128.
enum class GemmScales { kNone, kOne, kRuns, kSquares };

/// d = op(a) op(b) (+ bias) or d += op(a) op(b), column-major like cuBLASLt: op(a) [m,k], op(b)
/// [k,n], d [m,n]. All are dense except b, which may consist of some rows of a taller matrix.
/// Arithmetic and accumulation are fp32 (no TF32 for f32 operands); bias [m] has the type of d and
/// is added to each column. If bias or the old d is added, some algorithms first round the product
/// to d's type.
///
/// Factors of FP8 elements both have scales, and only a is transposed: m and n are multiples of 8,
/// k of 16. Of two layouts one is kOne only if both are.
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
  std::optional<DType> input_b = std::nullopt;  ///< if it differs from `input`
  GemmScales scales_a = GemmScales::kNone;
  GemmScales scales_b = GemmScales::kNone;
  /// FP8 only: keeps sums in the tensor cores' accumulators, which have about 14 bits, instead of
  /// adding them up in fp32 every few steps of k.
  bool fast_sums = false;

  DType type_of_b() const { return input_b.value_or(input); }
  bool has_scales() const { return scales_a != GemmScales::kNone; }
};

/// Kernels for the problem: the suggestions of cuBLASLt's heuristic, then those of gemm_sm90.h.
/// Operands: a, its scales if it has some, b, its scales, the bias if there is one, d; all 16-byte
/// aligned.
///
/// All are bitwise repeatable: only algorithms without a split of k, or whose partial sums are kept
/// in fp32 and added in a second step, are considered. Throws InternalError if cuBLASLt has none.
std::vector<NamedKernel> gemm_candidates(const GemmProblem& problem, CudaContext& context);

/// The fastest kernel by measurement (fastest_kernel.h), once per problem, device and versions of
/// the libraries. Kernels may round differently, so runs agree bitwise if they share a cache
/// folder.
CudaKernel make_gemm(const GemmProblem& problem, CudaContext& context);

}  // namespace braid
