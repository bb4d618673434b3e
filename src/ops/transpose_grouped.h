#pragma once

#include <cstdint>

#include "ops/op.h"
#include "ops/tally.h"

namespace braid {

/// transpose_grouped: x f8 [R,C], x_scales f32 [R, C/128], offsets i32 [E+1] -> row_scales f32
/// [C/128, R], with `column` column f8 [C,P] and column_scales f32 [P/128, C], with `watch` tally
/// i64 [4]. P = GroupedColumns::width(R, E).
///
/// Makes what products of experts read of rows that came as FP8: x itself with row_scales, which
/// are x_scales in the layout of `quantize_grouped`, and the copy by columns. That is the one that
/// quantize_grouped makes of the elements of x times their scales. Both scales are powers of two,
/// so only elements that are subnormal in the new block are rounded again. Rows from offsets[E] on
/// are not read, and what they would make is not written; neither is what belongs to no expert. C
/// is a multiple of 128. The tally counts elements of the copy by columns. Source: the
/// scaling-aware transpose of FP8-Flow-MoE (arXiv 2511.02302).
struct TransposeGroupedAttributes {
  bool column = true;
  WatchAttribute watch = {};  ///< with `column`
  void fields(auto&& visit) {
    visit("column", column);
    visit.optional(watch);
  }
};

extern const OpDefinition kTransposeGroupedOp;

/// The same spec for that number of rows of x.
OpSpec transpose_grouped_with_rows(const OpSpec& spec, int64_t rows);

}  // namespace braid
