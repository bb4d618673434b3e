#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/op_traits.h"
#include "passes/analysis/value_pieces.h"

namespace braid {

/// Whether each row of the op's result depends only on the same row of its operands, with the same
/// bits wherever that row is: activation functions and their backwards.
bool is_row_wise(const OpSpec& spec);

/// The hash of such a spec, ignoring its number of rows.
uint64_t row_wise_hash(OpSpec spec);

/// The values that such an op reads from one operand. The pieces cover the operand; their positions
/// count from its first element.
struct RowOperand {
  std::vector<ValuePiece> pieces;
  int64_t width = 0;  ///< elements of a row
};

/// Rows [begin, end) of the result, which are the rows from `first_row` on of the value `value`.
struct RowValue {
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t value = 0;
  int64_t first_row = 0;
  int64_t stride = 0;  ///< rows; as ValuePiece::stride
  int64_t origin = 0;  ///< row
};

/// The numbers of rows on which values depend.
struct RowNumbers {
  std::span<const RowRun> runs = {};
  int64_t period = 0;  ///< numbers repeat after so many rows; 0: they do not
};

/// The values of the result's rows. Tasks that are cut between rows give the same values as the
/// whole task. `hash`: row_wise_hash. Rows are numbered as in the value of the first operand, or if
/// there is no operand, as in `numbers`. If there are runs, values also depend on the numbers of
/// rows there.
std::vector<RowValue> row_values(uint64_t hash, std::span<const RowOperand> operands, int64_t rows,
                                 const RowNumbers& numbers = {});

}  // namespace braid
