#include "passes/analysis/piece_rows.h"

#include <algorithm>

#include "ops/op.h"

namespace braid {
namespace {

bool is_by_row(const OpDefinition& op, const OpSpec& spec, size_t operand) {
  if (op.pieces.is_by_row != nullptr) {
    return op.pieces.is_by_row(spec, operand);
  }
  return op.split.is_whole == nullptr || !op.split.is_whole(spec, operand);
}

int64_t blocks_of(const OpDefinition& op, const OpSpec& spec, size_t operand) {
  return op.pieces.row_blocks == nullptr ? 1 : op.pieces.row_blocks(spec, operand);
}

/// Rows that belong together. Ops that number their rows have none.
int64_t rows_together(const OpDefinition& op, const OpSpec& spec) {
  return op.split.unit == nullptr || op.pieces.row_runs != nullptr
             ? 1
             : std::max<int64_t>(1, op.split.unit(spec));
}

/// A task of several sequences, or of one that begins with the first number and may be one of
/// several, repeats its numbers.
int64_t period_of(const OpDefinition& op, const OpSpec& spec, const RowRule& rule) {
  if (op.split.dimension != SplitDimension::kRows) {
    return 0;
  }
  const int64_t unit = op.split.unit == nullptr ? 1 : op.split.unit(spec);
  const bool begins_at_0 = rule.runs.size() == 1 && rule.runs.front().index == 0;
  return unit > 1 ? unit : begins_at_0 ? rule.rows : 0;
}

uint64_t row_hash(const OpDefinition& op, OpSpec spec, const RowRule& rule) {
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    Shape& shape = spec.operands[i].shape;
    if (shape.rank() > 0 && (rule.is_by_row(i) || rule.has_features)) {
      shape[0] = 0;
    }
    if (rule.has_features && shape.rank() > 1 && writes(spec.operands[i].access)) {
      shape[1] = 0;
    }
  }
  if (op.pieces.forget_piece != nullptr) {
    op.pieces.forget_piece(spec);
  }
  return hash_value(spec);
}

}  // namespace

std::optional<RowRule> row_rule(const OpSpec& spec) {
  const OpDefinition* const op = find_known_op(spec.op);
  if (op == nullptr || (op->split.dimension == SplitDimension::kNever && !op->pieces.is_by_row) ||
      op->split.dimension == SplitDimension::kUndeclared) {
    return std::nullopt;
  }
  const Shape& counted = spec.operands[op->split.counted].shape;
  const int64_t together = rows_together(*op, spec);
  if (counted.rank() == 0 || counted.num_elems() == 0 || counted[0] % together != 0) {
    return std::nullopt;
  }
  const int64_t blocks_of_counted = blocks_of(*op, spec, op->split.counted);
  RowRule rule{.rows = counted[0] / together / blocks_of_counted,
               .widths = {},
               .blocks = {},
               .runs = {},
               .keeps_spread = op->family != OpFamily::kGemm,
               .has_features = op->role == OpRole::kProduct || op->role == OpRole::kScaledProduct};
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    const int64_t num_elems = spec.operands[i].shape.num_elems();
    const bool by_row = is_by_row(*op, spec, i);
    rule.blocks.push_back(blocks_of(*op, spec, i));
    const int64_t parts = rule.rows * rule.blocks.back();
    if (by_row && (num_elems == 0 || num_elems % parts != 0)) {
      return std::nullopt;
    }
    rule.widths.push_back(by_row ? num_elems / parts : 0);
  }
  if (op->pieces.row_runs != nullptr) {
    rule.runs = op->pieces.row_runs(spec);
    rule.period = period_of(*op, spec, rule);
  }
  rule.hash = row_hash(*op, spec, rule);
  return rule;
}

}  // namespace braid
