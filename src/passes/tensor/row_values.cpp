#include "passes/tensor/row_values.h"

#include <algorithm>

#include "ops/op.h"
#include "passes/analysis/mixed_hash.h"

namespace braid {
namespace {

using Piece = StepMeaning::Piece;

/// Rows at which an operand may change from one piece to the next. A row with a border inside is
/// separate.
std::vector<int64_t> row_borders(std::span<const RowOperand> operands, int64_t rows) {
  std::vector<int64_t> borders = {0, rows};
  for (const RowOperand& operand : operands) {
    for (const Piece& piece : operand.pieces) {
      borders.push_back(piece.end / operand.width);
      borders.push_back((piece.end + operand.width - 1) / operand.width);
    }
  }
  std::ranges::sort(borders);
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  return borders;
}

/// The pieces in [begin, end); positions count from `begin`.
std::vector<Piece> pieces_in(const RowOperand& operand, int64_t begin, int64_t end) {
  std::vector<Piece> found;
  for (Piece piece : operand.pieces) {
    const int64_t skipped = std::max<int64_t>(0, begin - piece.begin);
    piece.first += piece.value == 0 ? 0 : skipped;
    piece.begin = std::max(begin, piece.begin) - begin;
    piece.end = std::min(end, piece.end) - begin;
    if (piece.begin < piece.end) {
      found.push_back(piece);
    }
  }
  return found;
}

/// The value of rows [begin, end), which have no border between them.
RowValue value_of(uint64_t hash, std::span<const RowOperand> operands, int64_t begin, int64_t end) {
  RowValue result{.begin = begin, .end = end, .value = hash};
  bool is_counted = false;
  for (const RowOperand& operand : operands) {
    const int64_t width = operand.width;
    for (const Piece& piece : pieces_in(operand, begin * width, end * width)) {
      if (!is_counted && piece.value != 0) {
        result.first_row = piece.first / width;
        is_counted = true;
      }
      const int64_t first = piece.value == 0 ? 0 : piece.first - result.first_row * width;
      result.value =
          mixed_hash(mixed_hash(result.value, piece.value),
                     mixed_hash(static_cast<uint64_t>(first), static_cast<uint64_t>(piece.begin)));
    }
  }
  return result;
}

}  // namespace

bool is_row_wise(const OpSpec& spec) {
  return value_rule(spec) == ValueRule::kByRow &&
         std::ranges::all_of(spec.operands, [&](const OperandSpec& operand) {
           return operand.shape.num_elems() > 0 && operand.shape.rank() > 0 &&
                  operand.shape[0] == spec.operands[0].shape[0];
         });
}

uint64_t row_wise_hash(OpSpec spec) {
  for (OperandSpec& operand : spec.operands) {
    operand.shape[0] = 0;
  }
  return hash_value(spec);
}

std::vector<RowValue> row_values(uint64_t hash, std::span<const RowOperand> operands,
                                 int64_t rows) {
  const std::vector<int64_t> borders = row_borders(operands, rows);
  std::vector<RowValue> values;
  for (size_t i = 1; i < borders.size(); ++i) {
    values.push_back(value_of(hash, operands, borders[i - 1], borders[i]));
  }
  return values;
}

}  // namespace braid
