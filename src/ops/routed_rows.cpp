#include "ops/routed_rows.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/expert_exchange.h"
#include "ops/integer_values.h"
#include "ops/op.h"
#include "ops/quantize_grouped.h"
#include "ops/row_blocks.h"
#include "ops/scaled_grouped_linear.h"
#include "ops/transpose_grouped.h"

namespace braid {
namespace {

/// The owner's rows and the room of an exchange.
struct ExchangedRows {
  int64_t owned = 0;  ///< rows of the operand
  int64_t equal = 0;  ///< of them with equal loads
  int64_t room = 0;
  int64_t copies = 1;
};

ExchangedRows exchanged_rows(const OpSpec& spec) {
  const auto attributes = attributes_of<ExpertExchangeAttributes>(spec);
  const int64_t x = spec.operands[0].shape[0];
  const auto at = static_cast<size_t>(ExpertExchangeOperands(spec).y);
  const int64_t y = spec.operands[at].shape[0];
  const bool dispatches = communicates_as(spec, CommOp::kDispatchRows);
  return {.owned = dispatches ? x : y,
          .equal = attributes.equal.rows_or(dispatches ? x : y),
          .room = dispatches ? y : x,
          .copies = attributes.copies};
}

/// Whether it moves rows between blocks and the room of the rank that holds their experts.
bool holds_blocks(const OpSpec& spec) {
  return is_of_row_blocks(spec) && RowBlocks(spec).attributes.held;
}

int64_t rows_in_room(const OpSpec& spec) {
  return spec.operands[RowBlocks(spec).rows].shape[0];
}

/// The operand that says how many of the first operands' rows there are, if one does; 0: none. Maps
/// between pairs and rows are of the rank's own rows, which do not come to a room.
int64_t limit_of_offsets(const OpSpec& spec) {
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    const OperandSpec& operand = spec.operands[i];
    if (operand.dtype == DType::kI32 && operand.access == Access::kRead) {
      const IntegerNeed need = integer_need(spec, i);
      if (need.rule == IntegerRule::kOffsets) {
        return need.limit;
      }
      if (need.rule == IntegerRule::kPermutation || need.rule == IntegerRule::kPartialMap) {
        return 0;
      }
    }
  }
  return 0;
}

int64_t times(int64_t rows, double load) {
  return std::max<int64_t>(1, std::llround(static_cast<double>(rows) * load));
}

/// Whether the rows of an operand are rows of experts, and not those of a matrix per expert.
bool has_rows(const OpSpec& spec, size_t operand) {
  if (spec.operands[operand].dtype == DType::kI32) {
    return false;
  }
  const OpDefinition& op = find_op(spec.op);
  if (op.gemm_shape == nullptr) {
    return true;
  }
  constexpr size_t kWeight = 1;
  return op.gemm_shape(spec).grouped == GroupedSize::kDepth ? operand < 2 : operand != kWeight;
}

OpSpec with_rows(const OpSpec& spec, int64_t from, int64_t to) {
  if (spec.op == kQuantizeGroupedOp.name) {
    return quantize_grouped_with_rows(spec, to);
  }
  if (spec.op == kTransposeGroupedOp.name) {
    return transpose_grouped_with_rows(spec, to);
  }
  if (is_scaled_grouped_product(spec)) {
    return scaled_grouped_with_rows(spec, to);
  }
  OpSpec changed = spec;
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    if (has_rows(spec, i) && spec.operands[i].shape[0] == from) {
      changed.operands[i].shape[0] = to;
    }
  }
  return changed;
}

}  // namespace

RoutedRows::RoutedRows(const Program& program, double load) : load_(load) {
  check(load > 0, "a rank has {} times the rows of equal loads", load);
  for (const OpSpec& spec : program.specs.all()) {
    if (holds_blocks(spec)) {
      const RowBlocksAttributes blocks = RowBlocks(spec).attributes;
      const int64_t room = rows_in_room(spec);
      equal_rows_[room] = std::min(room, blocks.rows * blocks.copies);
    }
    if (exchanges_rows(spec)) {
      const ExchangedRows rows = exchanged_rows(spec);
      equal_rows_[rows.room] = std::min(rows.room, rows.equal * rows.copies);
    }
  }
}

OpSpec RoutedRows::priced(const OpSpec& spec) const {
  if (equal_rows_.empty()) {
    return spec;
  }
  if (exchanges_rows(spec)) {
    const OpSpec plain = without_tally(spec);
    const ExchangedRows rows = exchanged_rows(plain);
    const int64_t most = std::max<int64_t>(1, rows.room / rows.copies);
    return with_rows(plain, rows.owned, std::min(times(rows.equal, load_), most));
  }
  const auto found =
      equal_rows_.find(holds_blocks(spec) ? rows_in_room(spec) : limit_of_offsets(spec));
  return found == equal_rows_.end()
             ? spec
             : with_rows(spec, found->first, std::min(times(found->second, load_), found->first));
}

}  // namespace braid
