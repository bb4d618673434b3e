#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "passes/analysis/step_meaning.h"

namespace braid {

/// Whether the op makes each row of its result of that row of its operands and of nothing else, the
/// same bits wherever the row is: activation functions and their backwards.
bool is_row_wise(const OpSpec& spec);

/// Of such a spec, without its number of rows.
uint64_t row_wise_hash(OpSpec spec);

/// What such an op reads of one operand. Pieces fill it and count from its first element.
struct RowOperand {
  std::vector<StepMeaning::Piece> pieces;
  int64_t width = 0;  ///< elements of a row
};

/// Rows [begin, end) of its result, which are rows [first_row, ...) of the value `value`.
struct RowValue {
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t value = 0;
  int64_t first_row = 0;
};

/// The result by what each row is made of: tasks that are cut between rows make the values of the
/// whole. `hash`: row_wise_hash. Rows are counted as those of the first operand's value are.
std::vector<RowValue> row_values(uint64_t hash, std::span<const RowOperand> operands, int64_t rows);

}  // namespace braid
