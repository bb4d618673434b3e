#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "ops/op.h"
#include "ops/quantize.h"
#include "ops/tally.h"

namespace braid {

/// The FP8 copies of rows of experts (ops/expert_rows.h), in blocks of 128 elements, none of which
/// has rows of two experts.
///
/// The copy by columns has the rows of expert e from column 128 b on, where b = offsets[e] / 128
/// (rounded down) + e, so where an expert's columns are follows from its own offset. They take
/// ceil(rows of e / 128) blocks, and those of the next expert begin behind them. Of the last of
/// these blocks, columns without a row are zero. Other columns belong to no expert.
struct GroupedColumns {
  static constexpr int64_t kBlock = 128;

  /// Columns, for all experts together; `rows`: of the value, whether experts have them or not.
  static constexpr int64_t width(int64_t rows, int64_t experts) {
    return (rows / kBlock + experts) * kBlock;
  }
  /// The first column of an expert whose rows begin at `offset`.
  BRAID_HOST_DEVICE static constexpr int64_t begin(int64_t offset, int64_t expert) {
    return (offset / kBlock + expert) * kBlock;
  }
};

/// quantize_grouped: x [R,C] (f32 or bf16), offsets i32 [E+1] -> as attributes say, row f8 [R,C],
/// row_scales f32 [ceil(C/128), R], column f8 [C,P], column_scales f32 [P/128, C], tally i64 [4].
/// P = GroupedColumns::width(R, E).
///
/// Elements and scales are those of `quantize` with blocks of 128, which lie along the row, or
/// along the rows of one expert. Rows of x from offsets[E] on are not read, and what they would
/// make is not written; neither is what belongs to no expert. The tally counts elements of rows of
/// experts.
struct QuantizeGroupedAttributes {
  bool row = true;
  bool column = true;
  WatchAttribute watch = {};
  void fields(auto&& visit) {
    visit("row", row);
    visit("column", column);
    visit.optional(watch);
  }
  static constexpr ScaleLayout scales() { return {.block = GroupedColumns::kBlock}; }
};

/// Places of the operands, as attributes say; -1: there is none.
struct QuantizeGroupedOperands {
  explicit QuantizeGroupedOperands(const QuantizeGroupedAttributes& attributes);
  int row = -1;  ///< its scales follow
  int column = -1;
  int tally = -1;
};

/// The scales of FP8 rows [R,C], C a multiple of 128, where those of a row lie together: f32
/// [R, C/128]. So they travel with their row (ops/expert_exchange.h).
Shape scales_beside_rows(const Shape& rows);

extern const OpDefinition kQuantizeGroupedOp;

/// The same spec for that number of rows of x.
OpSpec quantize_grouped_with_rows(const OpSpec& spec, int64_t rows);

}  // namespace braid
