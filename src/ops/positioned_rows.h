#pragma once

#include <cstdint>
#include <vector>

#include "ops/attributes.h"
#include "ops/op.h"
#include "ops/operand_checker.h"
#include "ops/positions.h"

/// For ops that work on each row by its position in a sequence: their attributes have `sequence`
/// and `positions`, and row n is at positions.of(n % sequence).
namespace braid {

/// The first operand has whole sequences, and positions for them.
template <class Attributes>
void require_positions(const OperandChecker& operands, const Attributes& attributes,
                       const OperandSpec& first) {
  operands.require(attributes.sequence > 0 && first.shape[0] % attributes.sequence == 0,
                   "rows must be a multiple of sequence");
  operands.require(attributes.positions.fits(attributes.sequence),
                   "positions must be two runs of sequence tokens that do not overlap");
}

/// Rows of whole sequences; for a single sequence 1, since its rows are independent.
template <class Attributes>
int64_t rows_together(const OpSpec& spec) {
  const int64_t sequence = attributes_of<Attributes>(spec).sequence;
  return sequence == spec.operands[0].shape[0] ? 1 : sequence;
}

template <class Attributes>
void narrow_positions(OpSpec& piece, int64_t begin, int64_t end) {
  auto attributes = attributes_of<Attributes>(piece);
  if (attributes.sequence > end - begin) {  // a part of the only sequence
    attributes.sequence = end - begin;
    attributes.positions = attributes.positions.part(begin, end - begin);
    piece.attributes = to_attributes(attributes);
  }
}

/// Runs of rows at consecutive positions.
template <class Attributes>
std::vector<RowRun> runs_of_positions(const OpSpec& spec) {
  const auto attributes = attributes_of<Attributes>(spec);
  const TokenPositions& positions = attributes.positions;
  std::vector<RowRun> runs;
  for (int64_t row = 0; row < spec.operands[0].shape[0]; row += attributes.sequence) {
    runs.push_back({.begin = row, .index = positions.of(0)});
    if (positions.split > 0 && positions.split < attributes.sequence) {
      runs.push_back({.begin = row + positions.split, .index = positions.of(positions.split)});
    }
  }
  return runs;
}

template <class Attributes>
void forget_positions(OpSpec& spec) {
  auto attributes = attributes_of<Attributes>(spec);
  attributes.sequence = 0;
  attributes.positions = {};
  spec.attributes = to_attributes(attributes);
}

template <class Attributes>
inline constexpr SplitTraits kSplitByPositions{.dimension = SplitDimension::kRows,
                                               .unit = rows_together<Attributes>,
                                               .narrow = narrow_positions<Attributes>};

template <class Attributes>
inline constexpr PieceTraits kPositionPieces{.row_runs = runs_of_positions<Attributes>,
                                             .forget_piece = forget_positions<Attributes>};

}  // namespace braid
