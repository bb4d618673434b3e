#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/op_spec.h"
#include "ops/op_traits.h"

namespace braid {

/// How the results of a spec follow from its operands row by row, as its op says (SplitTraits,
/// PieceTraits). A row is the least part in which the op can be cut: a row of a matrix, a feature
/// of a weight gradient, a sequence of attention. An operand by row has as many rows; a result by
/// row depends on that row of operands by row, and on all of the others.
struct RowRule {
  int64_t rows = 0;
  std::vector<int64_t> widths;  ///< by operand: elements of a row of a block; 0: not by row
  std::vector<int64_t> blocks;  ///< by operand: of all rows (PieceTraits::row_blocks)
  uint64_t hash = 0;            ///< of the spec, ignoring the number of rows
  std::vector<RowRun> runs;
  int64_t period = 0;  ///< rows after which their numbers repeat: those of a sequence; 0: never
  /// Where rows are spread over ranks, those of the results are spread likewise. Not for products,
  /// which read rows of all ranks and differ from rank to rank in their weights.
  bool keeps_spread = true;
  /// Rows of the other operands are the features of the result: then the hash ignores their number.
  bool has_features = false;

  bool is_by_row(size_t operand) const { return widths[operand] > 0; }
};

/// Nothing if the results depend on all of the operands, or if the op is unknown.
std::optional<RowRule> row_rule(const OpSpec& spec);

}  // namespace braid
