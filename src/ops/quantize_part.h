#pragma once

#include <cstdint>

#include "ops/op.h"
#include "ops/quantize.h"

namespace braid {

/// The FP8 copy of a weight of which each rank has consecutive elements that may begin and end
/// inside rows and blocks. Each rank finds the largest magnitudes of its part of each block, all
/// ranks take the largest of these (all_reduce_max), and each rounds its part. The bits are those
/// of quantize_weight, which rounds the whole weight.
///
/// Magnitudes are the bits of |x| as f32. They order as the values do, with infinity and NaN above
/// all numbers. A weight has one for each square block, [ceil(rows / block), ceil(columns /
/// block)], or a single one, [1, 1], if block is 0. Blocks of 32 are square here, too.
///
/// part_magnitudes: x [n] (f32 or bf16) -> magnitudes i32 [blocks]; zero for blocks outside of x.
///
/// quantize_part: x [n], magnitudes i32 of the whole weight -> part f8e4m3 [n], and with `watch` a
/// tally (Fp8Tally).
///
/// x is elements [begin, begin + n) of the weight [rows, columns].
struct QuantizePartAttributes {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t block = 128;  ///< 0, 32 or 128
  int64_t begin = 0;
  MainWeightsAttribute rounds = {};
  WatchAttribute watch = {};  ///< of quantize_part
  void fields(auto&& visit) {
    visit("rows", rows);
    visit("columns", columns);
    visit("block", block);
    visit("begin", begin);
    visit.optional(rounds);
    visit.optional(watch);
  }
};

/// scales_of_magnitudes: magnitudes i32 of a weight -> row_scales, and column_scales (has_column),
/// as quantize_weight writes them for f8e4m3 and square blocks. block 0: one magnitude.
struct MagnitudeScalesAttributes {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t block = 128;
  bool has_column = true;
  void fields(auto&& visit) {
    visit("rows", rows);
    visit("columns", columns);
    visit("block", block);
    visit("has_column", has_column);
  }
};

/// Blocks of a weight along both dimensions.
Shape magnitude_shape(int64_t rows, int64_t columns, int64_t block);

extern const OpDefinition kPartMagnitudesOp;
extern const OpDefinition kQuantizePartOp;
extern const OpDefinition kScalesOfMagnitudesOp;

}  // namespace braid
