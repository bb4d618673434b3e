#include "passes/analysis/piece_interpreter.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <string>
#include <utility>

#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/offload.h"
#include "ops/op.h"
#include "passes/analysis/mixed_hash.h"
#include "passes/tensor/row_values.h"

namespace braid {
namespace {

constexpr int64_t kWhole = 1;  // kinds of pieces that a task reads
constexpr int64_t kSpread = 2;
constexpr int64_t kPartOfSpread = 3;

uint64_t with_numbers(uint64_t hash, std::initializer_list<int64_t> numbers) {
  for (const int64_t number : numbers) {
    hash = mixed_hash(hash, static_cast<uint64_t>(number));
  }
  return hash;
}

bool has_columns(const Program& program) {
  return std::ranges::any_of(program.specs.all(), [](const OpSpec& spec) {
    return value_rule(spec) == ValueRule::kColumns;
  });
}

/// PieceTraits::block_sources; empty if the op has none or is unknown.
std::vector<int64_t> sources_of_blocks(const OpSpec& spec) {
  const OpDefinition* const op = find_known_op(spec.op);
  return op == nullptr || op->pieces.block_sources == nullptr ? std::vector<int64_t>()
                                                              : op->pieces.block_sources(spec);
}

/// The rows of all blocks of result `operand`, block after block.
std::vector<RowValue> rows_of_blocks(const RowRule& rule, size_t operand,
                                     std::span<const RowOperand> operands) {
  std::vector<RowValue> all;
  for (int64_t block = 0; block < rule.blocks[operand]; ++block) {
    const uint64_t hash =
        mixed_hash(mixed_hash(rule.hash, operand + 1), static_cast<uint64_t>(block));
    for (RowValue row : row_values(hash, operands, rule.rows, {rule.runs, rule.period})) {
      row.begin += block * rule.rows;
      row.end += block * rule.rows;
      all.push_back(row);
    }
  }
  return all;
}

}  // namespace

PieceInterpreter::PieceInterpreter(const Program& program)
    : program_(program), names_(has_columns(program)), values_(program) {
  find_groups();
  for (const OpSpec& spec : program.specs.all()) {
    specs_.push_back(facts_of(spec));
  }
}

void PieceInterpreter::find_groups() {
  for (const Group& group : program_.groups) {
    const auto self = std::ranges::find(group.ranks, program_.rank);
    PieceGroup& added = groups_.emplace_back();
    const bool is_tensor = group.kind == GroupKind::kTensor;
    if ((is_tensor || group.kind == GroupKind::kContext) && self != group.ranks.end()) {
      added = {.hash = std::hash<std::string>()(group.name),
               .num_ranks = static_cast<int64_t>(group.ranks.size()),
               .rank = self - group.ranks.begin(),
               .is_tensor = is_tensor};
    }
  }
  const auto largest = std::ranges::max_element(
      groups_, {}, [](const PieceGroup& it) { return it.is_tensor ? it.num_ranks : 0; });
  if (largest != groups_.end() && largest->is_tensor && largest->num_ranks > 1) {
    largest->has_rows = true;
    rows_group_ = *largest;
  }
}

PieceInterpreter::Effect PieceInterpreter::effect_in_group(const OpSpec& spec) const {
  const bool two_operands = spec.operands.size() == 2;
  const PieceGroup& in = group(spec);
  if (in.num_ranks < 2) {
    return Effect::kCollective;  // not of a kind whose calls are cut
  }
  if (communicates_as(spec, CommOp::kAllToAll)) {
    return Effect::kExchange;
  }
  if (!in.is_tensor) {
    return Effect::kCollective;
  }
  if (communicates_as(spec, CommOp::kAllReduce)) {
    return Effect::kReduce;
  }
  if (communicates_as(spec, CommOp::kAllGather) && two_operands) {
    return Effect::kGather;
  }
  if (communicates_as(spec, CommOp::kReduceScatter) && two_operands) {
    return Effect::kScatter;
  }
  return communicates_as(spec, CommOp::kRingShift) ? Effect::kShift : Effect::kCollective;
}

PieceInterpreter::SpecFacts PieceInterpreter::facts_of(const OpSpec& spec) const {
  SpecFacts facts{
      .effect = Effect::kCompute, .hash = hash_value(by_any_engine(spec)), .rule = std::nullopt};
  const ValueRule rule = value_rule(spec);
  const bool is_alone = is_alone_in_group(program_, spec);
  const bool has_no_group = !group_of(program_, spec).has_value();
  if (does_nothing(spec)) {
    facts.effect = undefines(spec) ? Effect::kUndefine : Effect::kNothing;
  } else if (is_message(spec)) {
    facts.effect = communicates_as(spec, CommOp::kSend) ? Effect::kSend : Effect::kRecv;
  } else if (is_x_to_y(spec) && (rule == ValueRule::kMoved || is_alone)) {
    facts.effect = Effect::kMove;
  } else if (is_alone && communicates_as(spec, CommOp::kAllReduce)) {
    facts.effect = Effect::kNothing;
  } else if (rule == ValueRule::kSum || rule == ValueRule::kColumns) {
    facts.effect = rule == ValueRule::kSum ? Effect::kSum : Effect::kColumns;
  } else if (!has_no_group) {
    facts.effect = effect_in_group(spec);
  } else if (!sources_of_blocks(spec).empty()) {
    facts.effect = Effect::kBlocks;
  } else if (auto by_row = row_rule(spec)) {
    facts.effect = Effect::kRows;
    facts.rule = std::move(by_row);
  }
  return facts;
}

const PieceInterpreter::PieceGroup& PieceInterpreter::group(const OpSpec& spec) const {
  return groups_[group_of(program_, spec)->index()];
}

void PieceInterpreter::run() {
  while (!run_tasks()) {
    names_ = PieceNames(has_columns(program_));
    values_.reset();
    shown_.clear();
  }
}

/// Returns false if it stops because it knows now which rows it has received.
bool PieceInterpreter::run_tasks() {
  for (size_t i = 0; i < program_.tasks.size(); ++i) {
    run_task(TaskId(i));
    if (knows_more_) {
      knows_more_ = false;
      unknown_rows_.clear();
      return false;
    }
  }
  return true;
}

void PieceInterpreter::run_task(TaskId id) {
  const Task& task = program_.tasks[id.index()];
  const SpecFacts& facts = specs_[task.spec.index()];
  const OpSpec& spec = program_.spec(task);
  const auto ranges = program_.operands_of(task);
  switch (facts.effect) {
    case Effect::kNothing:
      return;
    case Effect::kUndefine:
      return values_.write(ranges[0], 0, TaskId());
    case Effect::kMove:
      return values_.move(ranges[0], ranges[1]);
    case Effect::kSend:
      shown_.push_back(seen_by(spec, ranges, values_.message(facts.hash, task.label)));
      return;
    case Effect::kRecv:
      return receive(ranges[0], values_.message(facts.hash, task.label), id);
    case Effect::kCollective:
      shown_.push_back(compute(spec, ranges, facts.hash, id));
      return;
    case Effect::kExchange:
      return exchange(spec, ranges, id);
    case Effect::kBlocks:
      return move_blocks(spec, ranges);
    case Effect::kGather:
      return gather(spec, ranges, id);
    case Effect::kScatter:
      return scatter(spec, ranges, id);
    case Effect::kReduce:
      return reduce(spec, ranges, id);
    case Effect::kShift:
      return shift(spec, ranges, id);
    case Effect::kSum:
      return add_up(spec, ranges, id);
    case Effect::kColumns:
      return join_columns(spec, ranges, id);
    case Effect::kRows:
      return compute_rows(*facts.rule, spec, ranges, id);
    case Effect::kCompute:
      compute(spec, ranges, facts.hash, id);
      return;
  }
}

// ---- what tasks read

/// Rows that lie together as on no rank alone are no longer spread.
PieceInterpreter::Pieces PieceInterpreter::read(const BufferRange& range) const {
  Pieces pieces = values_.read_from_begin(range);
  for (ValuePiece& piece : pieces) {
    if (piece.stride > 0 && piece.end - piece.begin >= piece.stride * rows_group_.num_ranks) {
      piece.stride = 0;
    }
  }
  return pieces;
}

/// A rank's whole share of spread rows counts as such, however the rows are spread.
uint64_t PieceInterpreter::with_pieces(uint64_t hash, const Pieces& pieces) const {
  for (size_t i = 0; i < pieces.size();) {
    const ValuePiece& piece = pieces[i];
    hash = mixed_hash(hash, piece.value);
    if (piece.stride <= 0) {
      hash = with_numbers(hash, {kWhole, piece.first, piece.end - piece.begin});
      ++i;
    } else if (!is_share(piece)) {
      hash = with_numbers(
          hash, {kPartOfSpread, piece.first, piece.end - piece.begin, piece.stride, piece.origin});
      ++i;
    } else {
      int64_t end = piece.origin;
      for (; i < pieces.size() && pieces[i].value == piece.value && is_share(pieces[i]) &&
             pieces[i].origin == end;
           ++i) {
        end += pieces[i].stride * rows_group_.num_ranks;
      }
      hash = with_numbers(hash, {kSpread, piece.origin, end});
    }
  }
  return hash;
}

/// Whether the piece is all that this rank has of rows that are spread in one run.
bool PieceInterpreter::is_share(const ValuePiece& piece) const {
  return piece.stride > 0 && piece.end - piece.begin == piece.stride &&
         piece.first - piece.origin == rows_group_.rank * piece.stride;
}

uint64_t PieceInterpreter::seen_by(const OpSpec& spec, std::span<const BufferRange> ranges,
                                   uint64_t hash) const {
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (reads(spec.operands[i].access)) {
      hash = with_pieces(hash, read(ranges[i]));
    }
  }
  return hash;
}

/// Writes new values to the results. Returns the hash of everything that the task reads.
uint64_t PieceInterpreter::compute(const OpSpec& spec, std::span<const BufferRange> ranges,
                                   uint64_t hash, TaskId id) {
  if (has_tally(spec)) {
    return count(spec, ranges, id);
  }
  const uint64_t seen = seen_by(spec, ranges, hash);
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (writes(spec.operands[i].access)) {
      values_.write(ranges[i], mixed_hash(seen, i + 1), id);
    }
  }
  return seen;
}

/// The task without its tally, then the tally. Returns the hash of what the task reads without it:
/// that is what other ranks see of a collective.
uint64_t PieceInterpreter::count(const OpSpec& spec, std::span<const BufferRange> ranges,
                                 TaskId id) {
  const OpSpec counted = without_tally(spec);
  const uint64_t seen = compute(counted, ranges.first(ranges.size() - 1), hash_value(counted), id);
  values_.write(ranges.back(), with_pieces(seen, read(ranges.back())), id);
  return seen;
}

// ---- rows

void PieceInterpreter::compute_rows(const RowRule& rule, const OpSpec& spec,
                                    std::span<const BufferRange> ranges, TaskId id) {
  std::vector<RowOperand> rows;
  std::vector<Pieces> whole;
  uint64_t all = rule.hash;  // read by results that are not by row
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (writes(spec.operands[i].access)) {
      continue;
    }
    Pieces pieces = read(ranges[i]);
    all = with_pieces(all, pieces);
    if (rule.is_by_row(i)) {
      const int64_t block_elems = rule.rows * rule.widths[i];
      for (int64_t block = 0; block < rule.blocks[i]; ++block) {
        rows.push_back(
            {pieces_in(pieces, block * block_elems, (block + 1) * block_elems), rule.widths[i]});
      }
    } else {
      whole.push_back(std::move(pieces));
    }
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Access access = spec.operands[i].access;
    if (!writes(access)) {
      continue;
    }
    Pieces before = reads(access) ? read(ranges[i]) : Pieces();
    if (!rule.is_by_row(i)) {
      values_.write(ranges[i], mixed_hash(with_pieces(all, before), i + 1), id);
      continue;
    }
    const int64_t width = rule.widths[i];
    std::vector<RowOperand> operands = rows;
    if (reads(access)) {
      operands.push_back({std::move(before), width});
    }
    Pieces written;
    for (const RowValue& row : rows_of_blocks(rule, i, operands)) {
      written.push_back({.begin = row.begin * width,
                         .end = row.end * width,
                         .value = row_name(row.value, rule, whole),
                         .first = row.first_row * width,
                         .stride = !rule.keeps_spread ? 0
                                   : row.stride > 0   ? row.stride * width
                                                      : row.stride,
                         .origin = row.origin * width,
                         .maker = id});
    }
    values_.write_pieces(ranges[i], std::move(written));
  }
}

uint64_t PieceInterpreter::row_name(uint64_t rows, const RowRule& rule,
                                    const std::vector<Pieces>& whole) {
  if (rule.has_features) {
    return names_.product(rows, whole);
  }
  for (const Pieces& pieces : whole) {
    rows = with_pieces(rows, pieces);
  }
  return rows;
}

void PieceInterpreter::join_columns(const OpSpec& spec, std::span<const BufferRange> ranges,
                                    TaskId id) {
  std::vector<RowOperand> blocks;
  std::vector<int64_t> borders = {0};
  for (size_t i = 0; i + 1 < ranges.size(); ++i) {
    blocks.push_back({read(ranges[i]), spec.operands[i].shape[1]});
    std::ranges::transform(blocks.back().pieces, std::back_inserter(borders),
                           [&](const ValuePiece& it) { return it.end / blocks.back().width; });
  }
  std::ranges::sort(borders);
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  Pieces joined;
  for (size_t i = 1; i < borders.size(); ++i) {
    const auto rows = joined_rows(blocks, borders[i - 1], borders[i]);
    if (!rows) {
      compute(spec, ranges, hash_value(spec), id);
      return;
    }
    joined.push_back(*rows);
    joined.back().maker = id;
  }
  values_.write_pieces(ranges.back(), std::move(joined));
}

/// Rows [begin, end) of columns side by side, if they are those of one product.
std::optional<ValuePiece> PieceInterpreter::joined_rows(std::span<const RowOperand> blocks,
                                                        int64_t begin, int64_t end) {
  std::vector<uint64_t> values;
  ValuePiece rows;  // counts in rows
  int64_t width = 0;
  for (const RowOperand& block : blocks) {
    const Pieces pieces = pieces_in(block.pieces, begin * block.width, end * block.width);
    const ValuePiece& piece = pieces.front();
    const bool is_first = values.empty();
    if (pieces.size() > 1 || piece.first % block.width != 0 ||
        (!is_first && piece.first / block.width != rows.first)) {
      return std::nullopt;
    }
    rows.first = piece.first / block.width;
    rows.stride = is_first ? std::max<int64_t>(0, piece.stride) / block.width : rows.stride;
    rows.origin = is_first ? piece.origin / block.width : rows.origin;
    values.push_back(piece.value);
    width += block.width;
  }
  const uint64_t value = names_.joined(values);
  return value == 0 ? std::nullopt
                    : std::optional(ValuePiece{.begin = begin * width,
                                               .end = end * width,
                                               .value = value,
                                               .first = rows.first * width,
                                               .stride = rows.stride * width,
                                               .origin = rows.origin * width});
}

void PieceInterpreter::move_blocks(const OpSpec& spec, std::span<const BufferRange> ranges) {
  const std::vector<int64_t> sources = sources_of_blocks(spec);
  const auto num_blocks = static_cast<int64_t>(sources.size());
  const int64_t num_elems = (ranges.back().end - ranges.back().begin) / num_blocks;
  const Pieces whole = read(ranges[0]);
  Pieces moved;
  for (int64_t i = 0; i < num_blocks; ++i) {
    const int64_t from = sources[static_cast<size_t>(i)];
    for (ValuePiece& piece : pieces_in(whole, from * num_elems, (from + 1) * num_elems)) {
      piece.begin += i * num_elems;
      piece.end += i * num_elems;
      append_piece(moved, piece);
    }
  }
  values_.write_pieces(ranges.back(), std::move(moved));
}

}  // namespace braid
