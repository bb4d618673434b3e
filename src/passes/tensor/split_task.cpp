#include "passes/tensor/split_task.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <utility>

#include "base/errors.h"
#include "ops/attention.h"
#include "ops/attributes.h"
#include "ops/linear.h"
#include "ops/rope.h"
#include "passes/program_rewriter.h"

namespace braid {
namespace {

// 16 elements of one byte are 16 bytes, which kernels ask of pointers.
constexpr int64_t kAlignedElems = 16;
constexpr size_t kNone = SIZE_MAX;

/// An op that is cut by rows: operand 0 has them all, and every operand but those in [first_whole,
/// end_whole) as many or, one per sequence, an equal share of them.
struct RowRule {
  std::string_view op;
  size_t first_whole = kNone;
  size_t end_whole = kNone;
  bool keeps_bits = true;
};

constexpr std::array kRowRules = {
    RowRule{"linear", 1, kNone, false},  // up to the result, see is_whole
    RowRule{"linear_dgrad", 1, 2, false},
    RowRule{"rmsnorm", 1, 2},
    RowRule{"add_rmsnorm", 2, 3},
    RowRule{"layernorm", 1, 3},
    RowRule{"add_layernorm", 2, 4},
    RowRule{"add"},
    RowRule{"accumulate"},
    RowRule{"cast"},
    RowRule{"copy"},
    RowRule{"gelu"},
    RowRule{"gelu_backward"},
    RowRule{"swiglu"},
    RowRule{"swiglu_backward"},
    RowRule{"rope"},
    RowRule{"attention", kNone, kNone, false},
    RowRule{"attention_backward", kNone, kNone, false},
};

const RowRule* find_row_rule(const OpSpec& spec) {
  const auto* const found = std::ranges::find(kRowRules, std::string_view(spec.op), &RowRule::op);
  return found == kRowRules.end() ? nullptr : found;
}

bool is_whole(const RowRule& rule, const OpSpec& spec, size_t operand) {
  return operand >= rule.first_whole &&
         operand < std::min(rule.end_whole, spec.operands.size() - 1);
}

/// Of a single sequence each row can be anywhere.
bool is_rope_of_one_sequence(const OpSpec& spec) {
  return spec.op == "rope" &&
         attributes_of<RopeAttributes>(spec).sequence == spec.operands[0].shape[0];
}

/// Rows that only make sense together; 0: none do.
int64_t sequence_of(const OpSpec& spec) {
  if (spec.op == "rope") {
    return is_rope_of_one_sequence(spec) ? 0 : attributes_of<RopeAttributes>(spec).sequence;
  }
  return spec.op.starts_with("attention") ? attributes_of<AttentionAttributes>(spec).sequence : 1;
}

/// The least number of rows that is `kAlignedElems` times something of every operand in rows.
int64_t aligned_rows(const RowRule& rule, const OpSpec& spec, int64_t rows) {
  int64_t aligned = 1;
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    if (!is_whole(rule, spec, i)) {
      const int64_t row_elems = spec.operands[i].shape.num_elems() / std::max<int64_t>(1, rows);
      aligned = std::lcm(aligned, kAlignedElems / std::gcd(kAlignedElems, row_elems));
    }
  }
  return aligned;
}

std::optional<SplitRule> rule_of(const OpSpec& spec) {
  if (spec.op == "linear_wgrad") {
    const bool is_all = attributes_of<LinearWgradAttributes>(spec).features.is_all();
    return is_all ? std::optional<SplitRule>({.dimension = "features",
                                              .count = spec.operands[2].shape[0],
                                              .unit = kAlignedElems})
                  : std::nullopt;
  }
  const RowRule* const rule = find_row_rule(spec);
  if (rule == nullptr || spec.operands[0].shape.rank() == 0) {
    return std::nullopt;
  }
  const int64_t rows = spec.operands[0].shape[0];
  return SplitRule{
      .dimension = "rows",
      .count = rows,
      .unit = std::lcm(aligned_rows(*rule, spec, rows), std::max<int64_t>(1, sequence_of(spec))),
      .keeps_bits = rule->keeps_bits};
}

void check_range(const OpSpec& spec, const SplitRange& range) {
  const std::optional<SplitRule> rule = split_rule(spec);
  check(rule.has_value(), "a task of op {} cannot be cut", spec.op);
  const auto is_border = [&](int64_t at) { return at % rule->unit == 0 || at == rule->count; };
  check(range.begin >= 0 && range.begin < range.end && range.end <= rule->count &&
            is_border(range.begin) && is_border(range.end),
        "op {}: {} {} to {} of {} are no piece of whole units of {}", spec.op, rule->dimension,
        range.begin, range.end, rule->count, rule->unit);
}

/// The part [first, first + rows) of the leading dimension of operand `index` that belongs to a
/// piece; `skipped_elems` are in front of it.
struct OperandPart {
  int64_t rows = 0;
  int64_t skipped_elems = 0;
};

OperandPart part_of(const Shape& shape, int64_t count, const SplitRange& range) {
  const int64_t width = shape.num_elems() / std::max<int64_t>(1, shape[0]);
  const int64_t begin = shape[0] * range.begin / count;
  const int64_t end = shape[0] * range.end / count;
  return {.rows = end - begin, .skipped_elems = begin * width};
}

TaskPiece wgrad_piece(const OpSpec& whole, std::span<const BufferRange> ranges,
                      const SplitRange& range) {
  TaskPiece piece{whole, {ranges.begin(), ranges.end()}};
  auto attributes = attributes_of<LinearWgradAttributes>(whole);
  const OperandPart rows = part_of(whole.operands[2].shape, whole.operands[2].shape[0], range);
  piece.spec.operands[2].shape[0] = rows.rows;
  if (!ranges.empty()) {
    piece.operands[2].begin += rows.skipped_elems;
    piece.operands[2].end = piece.operands[2].begin + piece.spec.operands[2].shape.num_elems();
  }
  // The sums of dy are made once, in the bits of the whole.
  if (attributes.has_bias && range.begin > 0) {
    attributes.has_bias = false;
    piece.spec.operands.pop_back();
    piece.operands.resize(std::min(piece.operands.size(), piece.spec.operands.size()));
  }
  attributes.features = {.first_feature = range.begin, .end_feature = range.end};
  piece.spec.attributes = to_attributes(attributes);
  return piece;
}

TaskPiece row_piece(const OpSpec& whole, std::span<const BufferRange> ranges,
                    const SplitRange& range) {
  TaskPiece piece{whole, {ranges.begin(), ranges.end()}};
  const RowRule& rule = *find_row_rule(whole);
  const int64_t count = whole.operands[0].shape[0];
  if (is_rope_of_one_sequence(whole)) {
    auto attributes = attributes_of<RopeAttributes>(whole);
    attributes.sequence = range.size();
    attributes.positions = attributes.positions.part(range.begin, range.size());
    piece.spec.attributes = to_attributes(attributes);
  }
  for (size_t i = 0; i < whole.operands.size(); ++i) {
    if (is_whole(rule, whole, i)) {
      continue;
    }
    OperandSpec& operand = piece.spec.operands[i];
    const OperandPart rows = part_of(operand.shape, count, range);
    operand.shape[0] = rows.rows;
    if (!ranges.empty()) {
      piece.operands[i].begin += rows.skipped_elems;
      piece.operands[i].end = piece.operands[i].begin + operand.shape.num_elems();
    }
  }
  return piece;
}

/// Without ranges: of the spec alone.
TaskPiece make_piece(const OpSpec& spec, std::span<const BufferRange> ranges,
                     const SplitRange& range) {
  check_range(spec, range);
  if (range == SplitRange{0, split_rule(spec)->count}) {
    return {spec, {ranges.begin(), ranges.end()}};
  }
  return spec.op == "linear_wgrad" ? wgrad_piece(spec, ranges, range)
                                   : row_piece(spec, ranges, range);
}

}  // namespace

std::optional<SplitRule> split_rule(const OpSpec& spec) {
  const std::optional<SplitRule> rule = rule_of(spec);
  return rule && rule->count > rule->unit ? rule : std::nullopt;
}

TaskPiece piece_of_task(const Program& program, TaskId task, const SplitRange& range) {
  const Task& whole = program.tasks[task.index()];
  return make_piece(program.spec(whole), program.operands_of(whole), range);
}

OpSpec piece_of_spec(const OpSpec& spec, const SplitRange& range) {
  return make_piece(spec, {}, range).spec;
}

TaskPiece leading_half(const OpSpec& spec, std::span<const BufferRange> ranges, int64_t half) {
  TaskPiece piece{spec, {ranges.begin(), ranges.end()}};
  for (size_t i = 0; i < ranges.size(); ++i) {
    const int64_t elems = (ranges[i].end - ranges[i].begin) / 2;
    piece.spec.operands[i].shape[0] /= 2;
    piece.operands[i].begin += half * elems;
    piece.operands[i].end = piece.operands[i].begin + elems;
  }
  return piece;
}

Program split_task(const Program& program, TaskId task, int64_t pieces) {
  const OpSpec& spec = program.spec(program.tasks[task.index()]);
  const std::optional<SplitRule> rule = split_rule(spec);
  check(rule.has_value() && pieces >= 1, "a task of op {} cannot be cut into {}", spec.op, pieces);
  const int64_t units = (rule->count + rule->unit - 1) / rule->unit;
  const int64_t num_pieces = std::min(pieces, units);
  ProgramRewriter writer(program);
  for (size_t position = 0; position < program.tasks.size(); ++position) {
    if (position != task.index()) {
      writer.append(TaskId(position));
      continue;
    }
    for (int64_t i = 0; i < num_pieces; ++i) {
      const SplitRange range{units * i / num_pieces * rule->unit,
                             std::min(rule->count, units * (i + 1) / num_pieces * rule->unit)};
      const TaskPiece piece = piece_of_task(program, task, range);
      writer.append(piece.spec, piece.operands, program.tasks[position]);
    }
  }
  return writer.take();
}

}  // namespace braid
