#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels/hopper_sums.h"
#include "base/worker_pool.h"
#include "ir/op_spec.h"
#include "ops/quantize.h"

namespace braid {

/// A factor [rows, depth] of FP8 elements with scales, as operands of a kernel.
struct ScaledFactor {
  int64_t rows = 0;
  int64_t depth = 0;
  ScaleLayout scales;
  int64_t scale_stride = 0;  ///< elements of a row of the scales
  bool is_e5m2 = false;

  /// The factor in `operand` of a product; its scales follow.
  ScaledFactor(const OpSpec& spec, size_t operand, const ScaleLayout& layout);

  /// The scale of an element.
  float scale_at(const std::byte* data, int64_t row, int64_t at) const;
};

struct ElemRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

/// Rows of a factor, or the part of them with that depth, as numbers of four bytes each: to
/// [rows, depth].
struct FactorPart {
  const std::byte* data = nullptr;  ///< all of the factor
  const std::byte* scales = nullptr;
  ElemRange rows;
  ElemRange depth;  ///< begins at a block of scales
};

/// Each element times its scale: exact in fp32.
void widen(WorkerPool& workers, const ScaledFactor& factor, const FactorPart& part, float* to);

/// Elements as tensor cores of Hopper read them: with one scale for 32, which they cannot apply, as
/// bf16 times its scale; others without their scales.
void split(WorkerPool& workers, const ScaledFactor& factor, const FactorPart& part,
           SplitNumber* to);

}  // namespace braid
