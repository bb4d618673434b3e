#include "passes/tensor/row_values.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "ops/op.h"
#include "passes/analysis/mixed_hash.h"

namespace braid {
namespace {

using Piece = ValuePiece;

/// Rows at which an operand may change from one piece to the next, or a run begins. A row with a
/// border inside is separate.
std::vector<int64_t> row_borders(std::span<const RowOperand> operands, int64_t rows,
                                 std::span<const RowRun> runs) {
  std::vector<int64_t> borders = {0, rows};
  for (const RowOperand& operand : operands) {
    for (const Piece& piece : operand.pieces) {
      borders.push_back(piece.end / operand.width);
      borders.push_back((piece.end + operand.width - 1) / operand.width);
    }
  }
  for (const RowRun& run : runs) {
    borders.push_back(run.begin);
  }
  std::ranges::sort(borders);
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  return borders;
}

/// How rows are spread over ranks, in rows; `offset`: of this place from the first rank's.
struct Spread {
  int64_t stride = 0;
  int64_t offset = 0;

  friend bool operator==(const Spread&, const Spread&) = default;
};

Spread spread_of(const Piece& piece, int64_t width) {
  return piece.stride > 0 ? Spread{piece.stride / width, (piece.first - piece.origin) / width}
                          : Spread{piece.stride, 0};
}

/// Of rows that depend on both: the same, or none.
Spread combined(const Spread& a, const Spread& b) {
  const bool is_unknown = a.stride + b.stride == kUnknownStride && a.stride * b.stride == 0;
  return a == b ? a : is_unknown ? Spread{kUnknownStride, 0} : Spread{};
}

/// The value of rows [begin, end), which have no border between them.
RowValue value_of(uint64_t hash, std::span<const RowOperand> operands, int64_t begin, int64_t end,
                  std::optional<int64_t> index, int64_t period) {
  RowValue result{.begin = begin, .end = end, .value = hash};
  bool is_counted = false;
  std::optional<Spread> spread;
  for (const RowOperand& operand : operands) {
    const int64_t width = operand.width;
    const auto after = [&](const Piece& piece) { return piece.end > begin * width; };
    auto at = std::ranges::partition_point(operand.pieces, std::not_fn(after));
    for (; at != operand.pieces.end() && at->begin < end * width; ++at) {
      const int64_t piece_begin = std::max(begin * width, at->begin);
      const Piece piece = part_of(*at, piece_begin, std::min(end * width, at->end));
      if (!is_counted && piece.value != 0) {
        result.first_row = piece.first / width;
        is_counted = true;
      }
      const Spread own = spread_of(piece, width);
      spread = spread ? combined(*spread, own) : own;
      const int64_t first = piece.value == 0 ? 0 : piece.first - result.first_row * width;
      result.value = mixed_hash(mixed_hash(result.value, piece.value),
                                mixed_hash(static_cast<uint64_t>(first),
                                           static_cast<uint64_t>(piece.begin - begin * width)));
    }
  }
  if (index && is_counted) {
    const int64_t offset = *index - result.first_row;
    result.value = mixed_hash(
        result.value,
        static_cast<uint64_t>(period == 0 ? offset : (offset % period + period) % period));
  } else if (index) {
    result.first_row = *index;
  }
  if (spread) {
    result.stride = spread->stride;
    result.origin = result.first_row - spread->offset;
  }
  return result;
}

/// The number of a row; nothing without runs.
std::optional<int64_t> index_of(int64_t row, std::span<const RowRun> runs) {
  const auto next = std::ranges::upper_bound(runs, row, {}, &RowRun::begin);
  return next == runs.begin() ? std::nullopt
                              : std::optional(row - (next - 1)->begin + (next - 1)->index);
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

std::vector<RowValue> row_values(uint64_t hash, std::span<const RowOperand> operands, int64_t rows,
                                 const RowNumbers& numbers) {
  const std::vector<int64_t> borders = row_borders(operands, rows, numbers.runs);
  std::vector<RowValue> values;
  for (size_t i = 1; i < borders.size(); ++i) {
    values.push_back(value_of(hash, operands, borders[i - 1], borders[i],
                              index_of(borders[i - 1], numbers.runs), numbers.period));
  }
  return values;
}

}  // namespace braid
