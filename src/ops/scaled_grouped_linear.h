#pragma once

#include <cstdint>

#include "ops/op.h"
#include "ops/scaled_linear.h"

namespace braid {

/// The products of experts with their rows (ops/grouped_linear.h) of FP8 factors in blocks of 128
/// (ops/quantize_grouped.h; weights: ops/quantize.h, in squares). M and K are multiples of 128, so
/// no square has elements of two experts. Elements, formats and sums as in ops/scaled_linear.h.
///
/// scaled_grouped_linear: x [R,K], x_scales, w [E M,K], w_scales, offsets i32 [E+1] -> y [R,M] (f32
/// or bf16); y = x w_e^T.
///
/// scaled_grouped_linear_dgrad: dy [R,M], dy_scales, w^T [K,E M], w_scales, offsets -> dx [R,K]
/// (f32 or bf16); dx = dy w_e.
///
/// Rows from offsets[E] on are neither read nor written.
struct ScaledGroupedLinearAttributes {
  EmulatedSums sums = {};
  void fields(auto&& visit) { visit.optional(sums); }
};

/// scaled_grouped_linear_wgrad: x^T [K,P], x_scales, dy^T [M,P], dy_scales, offsets -> dw f32
/// [E M,K]; dw_e (+)= dy_e^T x_e over the expert's columns of GroupedColumns, of which those
/// without a row are zero. Columns of no expert are not read. With `accumulate` dw is added to;
/// otherwise the gradient of an expert without rows is 0.
struct ScaledGroupedWgradAttributes {
  int64_t rows = 0;  ///< R
  bool accumulate = true;
  EmulatedSums sums = {};
  void fields(auto&& visit) {
    visit("rows", rows);
    visit("accumulate", accumulate);
    visit.optional(sums);
  }
};

extern const OpDefinition kScaledGroupedLinearOp;
extern const OpDefinition kScaledGroupedLinearDgradOp;
extern const OpDefinition kScaledGroupedLinearWgradOp;

/// Whether the op is one of these.
bool is_scaled_grouped_product(const OpSpec& spec);

/// The same spec of one of these for that number of rows R.
OpSpec scaled_grouped_with_rows(const OpSpec& spec, int64_t rows);

}  // namespace braid
