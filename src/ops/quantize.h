#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"
#include "ops/op.h"
#include "ops/tally.h"

namespace braid {

/// How FP8 data [R,D] shares scales. D is the dimension that a product sums over.
///   block 0    one scale for all: f32 [1]
///   block B    one scale for each run of B elements along D: [ceil(D/B), R]; f32 for B = 128, and
///              f8e8m0 for B = 32
///   square     one scale for each B x B block. B = 128: f32 [ceil(R/B), P], where P is ceil(D/B)
///              rounded up to a multiple of 4; the padding is zero. B = 32: each scale stands for
///              every row of its block, in the layout without `square`
/// These are the layouts that cuBLASLt reads on sm_90 (VEC128_32F and BLK128x128_32F; those for 32
/// elements are not swizzled, as native kernels of sm_100 need it). Products of MXFP8 know runs of
/// 32 alone, so squares of 32 are runs with equal scales to them, in both directions.
struct ScaleLayout {
  int64_t block = 128;
  bool square = false;

  /// What products read of a weight: square if blocks have 128 elements.
  static ScaleLayout of_weight(int64_t block) { return {.block = block, .square = block == 128}; }

  /// Whether there is one scale for a square, not one for each of its rows.
  bool stores_squares() const { return square && block == 128; }
  DType dtype() const { return block == 32 ? DType::kF8E8M0 : DType::kF32; }
  Shape shape(const Shape& data) const;
};

/// Whether it is one of the two types of FP8 elements.
constexpr bool is_fp8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
}

/// What FP8 copies lose: the elements of a tally, i64 [4], to which tasks add. Maxima and sums of
/// integers, so any order of tasks and of threads gives the same bits. Counts are of elements of
/// all copies that a task writes.
struct Fp8Tally {
  static constexpr int64_t kLargest = 0;    ///< the bits of the largest |x| as f32; a maximum
  static constexpr int64_t kFlushed = 1;    ///< not zero in x, but zero in FP8
  static constexpr int64_t kSaturated = 2;  ///< finite, and beyond the largest FP8 number x scale
  static constexpr int64_t kElems = 3;
  static constexpr int64_t kSize = 4;
};

/// The op whose result x a quantize task rounds: the task has that op's other operands in the place
/// of x, also those that it writes. x itself is never stored, though it is first rounded to its
/// type, so copies have the same bits. One with SourceTraits: activation functions, their backwards
/// and norms. Empty: x is an operand.
struct SourceAttribute {
  std::string of = {};
  std::vector<Attribute> attributes = {};  ///< of that op
  void fields(auto&& visit) {
    visit("of", of);
    visit.prefixed("of_", attributes);
  }
  friend bool operator==(const SourceAttribute&, const SourceAttribute&) = default;
};

/// Of ops that make copies of a weight. Set: x are main weights, f32, and each element is rounded
/// to bf16 first, so that copies have the bits of those of bf16 weights, which then need not exist.
struct MainWeightsAttribute {
  bool main_weights = false;
  void fields(auto&& visit) { visit("main_weights", main_weights); }
  friend bool operator==(const MainWeightsAttribute&, const MainWeightsAttribute&) = default;
};

/// quantize, quantize_weight: x [R,C] (f32 or bf16) -> as attributes say, row f8 [R,C],
/// row_scales, column f8 [C,R], column_scales, db f32 [C], tally i64 [4].
///
/// row is x divided by its scales (base/float8.h: powers of two, found from the largest magnitude
/// of each block), rounded to f8e4m3 or f8e5m2; column is the same of x transposed, also from x
/// itself. Blocks lie along the last dimension of either. A block with an element that is infinite
/// or NaN has the scale NaN, and all of its elements are NaN, so that overflow remains visible. db
/// (has_bias) has the column sums of x: added to (accumulate), otherwise overwritten.
///
/// With `source`, quantize has the other operands of that op in the place of x, for example
/// quantize of swiglu: gate_up [R,2C] -> row, ...; of add_rmsnorm: x [R,C], residual [R,C], w [C]
/// -> sum [R,C], rstd f32 [R], row, ...
///
/// quantize_weight is the same for a weight: it is never repeated for recomputation, because its
/// results are made once for all microbatches.
struct QuantizeAttributes {
  int64_t block = 128;  ///< 0, 32 or 128, see ScaleLayout
  bool square = false;
  bool row = true;
  bool column = true;
  bool has_bias = false;
  bool accumulate = true;
  SourceAttribute source = {};
  MainWeightsAttribute rounds = {};  ///< of quantize_weight
  WatchAttribute watch = {};
  void fields(auto&& visit) {
    visit("block", block);
    visit("square", square);
    visit("row", row);
    visit("column", column);
    visit("has_bias", has_bias);
    visit("accumulate", accumulate);
    visit.optional(source);
    visit.optional(rounds);
    visit.optional(watch);
  }
  ScaleLayout scales() const { return {.block = block, .square = square}; }
};

/// Places of the operands, as attributes say; -1: there is none.
struct QuantizeOperands {
  explicit QuantizeOperands(const QuantizeAttributes& attributes);
  int row = -1;  ///< its scales follow
  int column = -1;
  int db = -1;
  int tally = -1;
};

/// The traits of a source; null if no quantize task can do that op.
const SourceTraits* find_source_traits(std::string_view op);
/// What a quantize spec rounds; with a source it is no operand.
OperandSpec quantized_value(const OpSpec& spec);
/// The op that makes what a quantize spec rounds, with its result; nullopt without a source.
std::optional<OpSpec> quantize_source(const OpSpec& spec);

/// The factor of a product that the first task with a tally rounds: "x", "w" or "dy". The backward
/// may make columns of x, but the forward has made its rows before.
std::string_view watched_factor(const OpSpec& spec, Phase phase);

extern const OpDefinition kQuantizeOp;
extern const OpDefinition kQuantizeWeightOp;

}  // namespace braid
