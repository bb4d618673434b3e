#include "passes/tensor/split_task.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/columns.h"
#include "ops/op.h"

namespace braid {
namespace {

/// Null if the op cannot be cut or is unknown.
const SplitTraits* split_traits(const OpSpec& spec) {
  const OpDefinition* const op = find_known_op(spec.op);
  const bool is_cut = op != nullptr && (op->split.dimension == SplitDimension::kRows ||
                                        op->split.dimension == SplitDimension::kFeatures);
  return is_cut ? &op->split : nullptr;
}

bool is_whole(const SplitTraits& split, const OpSpec& spec, size_t operand) {
  return split.is_whole != nullptr && split.is_whole(spec, operand);
}

bool has_columns(const SplitTraits& split, const OpSpec& spec, size_t operand) {
  return split.has_columns != nullptr && split.has_columns(spec, operand);
}

std::string_view dimension_name(SplitDimension dimension) {
  return dimension == SplitDimension::kRows ? "rows" : "features";
}

/// The smallest number of rows for which every operand cut by rows has a multiple of
/// `kAlignedElems` elements.
int64_t aligned_rows(const SplitTraits& split, const OpSpec& spec, int64_t rows) {
  int64_t aligned = 1;
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    if (!is_whole(split, spec, i) && !has_columns(split, spec, i)) {
      const int64_t row_elems = spec.operands[i].shape.num_elems() / std::max<int64_t>(1, rows);
      aligned = std::lcm(aligned, kAlignedElems / std::gcd(kAlignedElems, row_elems));
    }
  }
  return aligned;
}

std::optional<SplitRule> rule_of(const OpSpec& spec) {
  const SplitTraits* const split = split_traits(spec);
  if (split == nullptr || spec.operands[split->counted].shape.rank() == 0) {
    return std::nullopt;
  }
  const int64_t rows = spec.operands[split->counted].shape[0];
  const int64_t unit = split->unit == nullptr ? 1 : split->unit(spec);
  if (unit == 0) {
    return std::nullopt;
  }
  return SplitRule{.dimension = split->dimension,
                   .count = rows,
                   .unit = std::lcm(aligned_rows(*split, spec, rows), unit),
                   .keeps_bits = split->keeps_bits};
}

void check_range(const OpSpec& spec, const SplitRange& range) {
  const std::optional<SplitRule> rule = split_rule(spec);
  check(rule.has_value(), "a task of op {} cannot be cut", spec.op);
  const auto is_border = [&](int64_t at) { return at % rule->unit == 0 || at == rule->count; };
  check(range.begin >= 0 && range.begin < range.end && range.end <= rule->count &&
            is_border(range.begin) && is_border(range.end),
        "op {}: {} {} to {} of {} are no piece of whole units of {}", spec.op,
        dimension_name(rule->dimension), range.begin, range.end, rule->count, rule->unit);
}

/// The part of an operand that belongs to a piece: `rows` of its leading dimension, after
/// `skipped_elems` elements.
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

TaskPiece cut_piece(const OpSpec& whole, std::span<const BufferRange> ranges,
                    const SplitRange& range) {
  TaskPiece piece{whole, {ranges.begin(), ranges.end()}};
  const SplitTraits& split = *split_traits(whole);
  const int64_t count = whole.operands[split.counted].shape[0];
  for (size_t i = 0; i < whole.operands.size(); ++i) {
    if (is_whole(split, whole, i)) {
      continue;
    }
    OperandSpec& operand = piece.spec.operands[i];
    if (has_columns(split, whole, i)) {
      piece.taken.push_back({.operand = i, .matrix = operand, .columns = range});
      operand.shape[1] = range.size();
      continue;
    }
    const OperandPart rows = part_of(operand.shape, count, range);
    operand.shape[0] = rows.rows;
    if (!ranges.empty()) {
      piece.operands[i].begin += rows.skipped_elems;
      piece.operands[i].end = piece.operands[i].begin + operand.shape.num_elems();
    }
  }
  if (split.narrow != nullptr) {
    split.narrow(piece.spec, range.begin, range.end);
    piece.operands.resize(std::min(piece.operands.size(), piece.spec.operands.size()));
  }
  return piece;
}

/// If `ranges` is empty, cuts only the spec.
TaskPiece make_piece(const OpSpec& spec, std::span<const BufferRange> ranges,
                     const SplitRange& range) {
  check_range(spec, range);
  if (range == SplitRange{0, split_rule(spec)->count}) {
    return {spec, {ranges.begin(), ranges.end()}};
  }
  return cut_piece(spec, ranges, range);
}

OpSpec take_spec(const TakenColumns& taken, const OperandSpec& columns) {
  OpSpec spec{std::string(kTakeColumnsOp.name),
              to_attributes(ColumnsAttributes{.width = taken.matrix.shape[1],
                                              .begin = taken.columns.begin,
                                              .size = taken.columns.size()}),
              {taken.matrix, columns}};
  spec.operands[1].access = Access::kWrite;
  return spec;
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

std::vector<OpSpec> specs_of_piece(const OpSpec& spec, const SplitRange& range) {
  TaskPiece piece = make_piece(spec, {}, range);
  std::vector<OpSpec> specs;
  for (const TakenColumns& taken : piece.taken) {
    specs.push_back(take_spec(taken, piece.spec.operands[taken.operand]));
  }
  specs.push_back(std::move(piece.spec));
  return specs;
}

uint32_t append_piece(ProgramRewriter& writer, const Program& program, const TaskPiece& piece,
                      const Task& like) {
  std::vector<BufferRange> operands = piece.operands;
  const BufferRange& result = operands.back();
  for (const TakenColumns& taken : piece.taken) {
    const OperandSpec& columns = piece.spec.operands[taken.operand];
    BufferRange& range = operands[taken.operand];
    Buffer buffer = program.buffers[range.buffer.index()];
    buffer.name = fmt::format("{}.from{}.for.{}.from{}", buffer.name, taken.columns.begin,
                              program.buffers[result.buffer.index()].name, result.begin);
    buffer.lifetime = Lifetime::kStep;
    buffer.shape = columns.shape;
    const BufferRange copy{writer.add_buffer(std::move(buffer)), 0, columns.shape.num_elems()};
    writer.append(take_spec(taken, columns), std::array{range, copy}, like);
    range = copy;
  }
  writer.append(piece.spec, operands, like);
  return static_cast<uint32_t>(piece.taken.size()) + 1;
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
      append_piece(writer, program, piece, program.tasks[position]);
    }
  }
  return writer.take();
}

}  // namespace braid
