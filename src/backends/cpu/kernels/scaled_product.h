#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "backends/cpu/kernel.h"
#include "backends/cpu/kernels/hopper_sums.h"
#include "backends/cpu/kernels/scaled_factor.h"

/// Products of FP8 factors as fp32 products: an element times its scale, a power of two, is exact
/// in fp32, and so is the product of two elements. The first factor is converted a panel of rows at
/// a time. With `hopper` sums are those of cuBLASLt on Hopper instead, slowly.
namespace braid {

/// How cuBLASLt sums on Hopper.
struct HopperSums {
  TensorCore core = kHopperFp8;
  /// After so many products the accumulator, times the scales of a run, is added to a sum in fp32.
  int64_t run = 128;
  bool has_scales = true;  ///< otherwise they are in the factors
};

/// Which elements of the factors a product has. The rows of its result are as many as of a, and
/// begin at `result_row`; its columns are the rows of b.
struct ScaledProductPart {
  ElemRange a_rows;
  ElemRange b_rows;
  ElemRange a_depth;  ///< begins at a block of scales
  ElemRange b_depth;  ///< of the same size
  int64_t result_row = 0;

  int64_t depth() const { return a_depth.size(); }
};

/// c = a b^T (+ bias, or + c), of operands of a task.
struct ScaledProduct {
  ScaledFactor a;
  ScaledFactor b;
  size_t a_operand = 0;  ///< its scales follow
  size_t b_operand = 2;
  size_t result = 4;
  DType result_dtype = DType::kF32;  ///< or bf16
  int bias = -1;
  bool accumulate = false;
  std::optional<HopperSums> hopper = std::nullopt;
  bool b_scale_first = false;  ///< Hopper: of the scales of a run, that of b is multiplied first
  bool any_workers = false;    ///< bits do not depend on the number of workers
};

/// Bytes of scratch for products with at most as many rows and as much depth as `largest`.
size_t scaled_product_scratch_bytes(const ScaledProduct& product, const ScaledProductPart& largest);

/// Without depth the result is 0 or, with `accumulate`, stays.
void run_scaled_product(const KernelArgs& args, const ScaledProduct& product,
                        const ScaledProductPart& part);

}  // namespace braid
