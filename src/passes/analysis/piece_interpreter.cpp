#include "passes/analysis/piece_interpreter.h"

#include <algorithm>
#include <functional>
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

constexpr uint64_t kWhole = 1;  // kinds of pieces that a task reads
constexpr uint64_t kSpread = 2;
constexpr uint64_t kPartOfSpread = 3;

uint64_t signed_mixed(uint64_t a, int64_t b) {
  return mixed_hash(a, static_cast<uint64_t>(b));
}

int64_t modulo(int64_t a, int64_t n) {
  return (a % n + n) % n;
}

bool has_columns(const Program& program) {
  return std::ranges::any_of(program.specs.all(), [](const OpSpec& spec) {
    return value_rule(spec) == ValueRule::kColumns;
  });
}

/// Pieces of [begin, end); positions count from `begin`.
std::vector<ValuePiece> pieces_in(const std::vector<ValuePiece>& pieces, int64_t begin,
                                  int64_t end) {
  std::vector<ValuePiece> found;
  for (const ValuePiece& piece : pieces) {
    if (piece.begin < end && begin < piece.end) {
      ValuePiece part = part_of(piece, std::max(begin, piece.begin), std::min(end, piece.end));
      part.begin -= begin;
      part.end -= begin;
      found.push_back(part);
    }
  }
  return found;
}

int64_t width_of(const OperandSpec& operand) {
  return operand.shape.rank() == 2 ? operand.shape[1] : 1;
}

/// PieceTraits::block_sources; null for an unknown op.
auto sources_of_blocks(const OpSpec& spec) {
  const OpDefinition* const op = find_known_op(spec.op);
  return op == nullptr ? nullptr : op->pieces.block_sources;
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

bool is_unknown(const ValuePiece& piece) {
  return piece.stride == kUnknownStride;
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
  const auto largest = std::ranges::max_element(groups_, {}, [](const PieceGroup& it) {
    return it.is_tensor ? it.num_ranks : 0;
  });
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
    facts.effect = Effect::kUndefine;
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
  } else if (sources_of_blocks(spec) != nullptr) {
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
  if (!run_tasks()) {
    names_ = PieceNames(has_columns(program_));
    values_.reset();
    shown_.clear();
    run_tasks();
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
      return receive(spec, ranges[0], values_.message(facts.hash, task.label), id);
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
    const ValuePiece& piece = pieces[i++];
    const int64_t size = piece.end - piece.begin;
    if (piece.stride <= 0) {
      hash = signed_mixed(signed_mixed(mixed_hash(mixed_hash(hash, kWhole), piece.value),
                                       piece.first),
                          size);
      continue;
    }
    const bool is_share =
        size == piece.stride && piece.first - piece.origin == rows_group_.rank * piece.stride;
    if (!is_share) {
      hash = mixed_hash(mixed_hash(hash, kPartOfSpread), piece.value);
      for (const int64_t part : {piece.first, size, piece.stride, piece.origin}) {
        hash = signed_mixed(hash, part);
      }
      continue;
    }
    int64_t end = piece.origin + size * rows_group_.num_ranks;
    for (; i < pieces.size(); ++i) {
      const ValuePiece& next = pieces[i];
      const int64_t next_size = next.end - next.begin;
      if (next.value != piece.value || next.stride != next_size || next.origin != end ||
          next.first - next.origin != rows_group_.rank * next.stride) {
        break;
      }
      end += next_size * rows_group_.num_ranks;
    }
    hash = signed_mixed(
        signed_mixed(mixed_hash(mixed_hash(hash, kSpread), piece.value), piece.origin), end);
  }
  return hash;
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
  const uint64_t seen = seen_by(spec, ranges, hash);
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (writes(spec.operands[i].access)) {
      values_.write(ranges[i], mixed_hash(seen, i + 1), id);
    }
  }
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
        rows.push_back({pieces_in(pieces, block * block_elems, (block + 1) * block_elems),
                        rule.widths[i]});
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

void PieceInterpreter::add_up(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id) {
  std::vector<Pieces> blocks;
  for (const BufferRange& range : ranges.first(ranges.size() - 1)) {
    blocks.push_back(read(range));
  }
  const int64_t num_elems = spec.operands.back().shape.num_elems();
  values_.write_pieces(ranges.back(), sum_of(blocks, num_elems, blocks.size(), id));
}

/// The sum of blocks, element by element. `hash`: of blocks that are no sum over ranks.
PieceInterpreter::Pieces PieceInterpreter::sum_of(const std::vector<Pieces>& blocks,
                                                  int64_t num_elems, uint64_t hash, TaskId id) {
  std::vector<int64_t> borders = {0, num_elems};
  for (const Pieces& block : blocks) {
    std::ranges::transform(block, std::back_inserter(borders), &ValuePiece::end);
  }
  std::ranges::sort(borders);
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  std::vector<size_t> at(blocks.size());
  Pieces sum;
  for (size_t i = 1; i < borders.size(); ++i) {
    std::vector<ValuePiece> addends;
    uint64_t value = hash;
    for (size_t k = 0; k < blocks.size(); ++k) {
      at[k] += blocks[k][at[k]].end <= borders[i - 1] ? 1 : 0;
      addends.push_back(part_of(blocks[k][at[k]], borders[i - 1], borders[i]));
      value = signed_mixed(mixed_hash(value, addends.back().value),
                           addends.back().first - addends.front().first);
    }
    ValuePiece piece = sum_over_ranks(addends).value_or(
        ValuePiece{.value = value, .first = addends.front().first});
    piece.begin = borders[i - 1];
    piece.end = borders[i];
    piece.maker = id;
    append_piece(sum, piece);
  }
  return sum;
}

/// The sum over the ranks of one value, of which every rank has its own rows: `addends` come in the
/// order of ranks. Nothing if they are something else.
std::optional<ValuePiece> PieceInterpreter::sum_over_ranks(std::span<const ValuePiece> addends) {
  const auto& [hash, n, rank, is_tensor, has_rows] = rows_group_;
  if (!has_rows || std::cmp_not_equal(addends.size(), n)) {
    return std::nullopt;
  }
  const ValuePiece& own = addends[static_cast<size_t>(rank)];
  const int64_t neighbour = modulo(rank + 1, n);
  const int64_t steps = modulo(2 * rank - neighbour, n) - rank;
  const int64_t distance = addends[static_cast<size_t>(neighbour)].first - own.first;
  const int64_t stride = distance / steps;
  for (int64_t i = 0; i < n; ++i) {
    // Rank i got from this rank the rows that are as far from its own as this rank's from i's.
    const ValuePiece& addend = addends[static_cast<size_t>(i)];
    if (addend.value != names_.at(own.value, hash, n, i - rank) || addend.stride != 0 ||
        addend.first != own.first + (modulo(2 * rank - i, n) - rank) * stride) {
      return std::nullopt;
    }
  }
  return ValuePiece{.value = names_.sum_over(own.value, hash),
                    .first = own.first,
                    .stride = stride,
                    .origin = own.first - rank * stride};
}

void PieceInterpreter::join_columns(const OpSpec& spec, std::span<const BufferRange> ranges,
                                    TaskId id) {
  const int64_t rows = spec.operands.back().shape[0];
  const int64_t width = spec.operands.back().shape[1];
  std::vector<RowOperand> operands;
  std::vector<int64_t> borders = {0, rows};
  bool fits = rows > 0;
  for (size_t i = 0; i + 1 < ranges.size(); ++i) {
    operands.push_back({read(ranges[i]), spec.operands[i].shape[1]});
    for (const ValuePiece& piece : operands.back().pieces) {
      borders.push_back(piece.end / operands.back().width);
      fits = fits && piece.end % operands.back().width == 0;
    }
  }
  std::ranges::sort(borders);
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  Pieces written;
  for (size_t i = 1; fits && i < borders.size(); ++i) {
    std::vector<uint64_t> values;
    std::vector<ValuePiece> firsts;
    for (const RowOperand& operand : operands) {
      ValuePiece piece = pieces_in(operand.pieces, borders[i - 1] * operand.width,
                                   borders[i] * operand.width)
                             .front();
      fits = fits && piece.first % operand.width == 0;
      piece.first /= operand.width;
      piece.origin /= operand.width;
      piece.stride = piece.stride > 0 ? piece.stride / operand.width : piece.stride;
      fits = fits && (firsts.empty() || firsts.front().first == piece.first);
      firsts.push_back(piece);
      values.push_back(piece.value);
    }
    const uint64_t value = names_.joined(values);
    fits = fits && value != 0;
    const ValuePiece& front = firsts.front();
    written.push_back({.begin = borders[i - 1] * width,
                       .end = borders[i] * width,
                       .value = value,
                       .first = front.first * width,
                       .stride = front.stride > 0 ? front.stride * width : front.stride,
                       .origin = front.origin * width,
                       .maker = id});
  }
  if (fits) {
    values_.write_pieces(ranges.back(), std::move(written));
  } else {
    compute(spec, ranges, hash_value(spec), id);
  }
}

// ---- communication of tensor ranks

/// What the rank `distance` places on has where this rank has `piece`.
ValuePiece PieceInterpreter::on_rank(ValuePiece piece, const PieceGroup& group,
                                     int64_t distance) {
  if (piece.stride <= 0 || !group.has_rows) {
    piece.value = names_.at(piece.value, group.hash, group.num_ranks, distance);
    piece.stride = 0;
    return piece;
  }
  const int64_t owner = (piece.first - piece.origin) / piece.stride;
  piece.first += (modulo(owner + distance, group.num_ranks) - owner) * piece.stride;
  return piece;
}

void PieceInterpreter::gather(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id) {
  const PieceGroup& in = group(spec);
  const Pieces own = read(ranges[0]);
  const int64_t num_elems = ranges[0].end - ranges[0].begin;
  if (in.has_rows) {
    learn_rows(spec, own, num_elems, ranges[1].begin + in.rank * num_elems);
  }
  Pieces whole;
  for (int64_t rank = 0; rank < in.num_ranks; ++rank) {
    for (const ValuePiece& piece : own) {
      ValuePiece block = on_rank(piece, in, rank - in.rank);
      block.begin += rank * num_elems;
      block.end += rank * num_elems;
      block.stride = 0;
      block.maker = id;
      append_piece(whole, block);
    }
  }
  values_.write_pieces(ranges[1], std::move(whole));
}

void PieceInterpreter::scatter(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id) {
  const PieceGroup& in = group(spec);
  const Pieces whole = read(ranges[0]);
  const int64_t num_elems = ranges[1].end - ranges[1].begin;
  std::vector<Pieces> blocks;
  for (int64_t rank = 0; rank < in.num_ranks; ++rank) {
    blocks.push_back(received_block(whole, num_elems, in, rank));
  }
  values_.write_pieces(ranges[1], sum_of(blocks, num_elems, blocks.size(), id));
}

/// The block that comes from `rank` if every rank gives block i of `whole` to rank i. It is named
/// after the block that this rank gives to the rank as far away on the other side.
PieceInterpreter::Pieces PieceInterpreter::received_block(const Pieces& whole, int64_t num_elems,
                                                          const PieceGroup& in, int64_t rank) {
  const int64_t given = modulo(2 * in.rank - rank, in.num_ranks);
  Pieces block = pieces_in(whole, given * num_elems, (given + 1) * num_elems);
  for (ValuePiece& piece : block) {
    piece = on_rank(piece, in, rank - in.rank);
  }
  return block;
}

void PieceInterpreter::exchange(const OpSpec& spec, std::span<const BufferRange> ranges,
                                TaskId id) {
  const PieceGroup& in = group(spec);
  const Pieces given = read(ranges[0]);
  const int64_t num_elems = (ranges[0].end - ranges[0].begin) / in.num_ranks;
  Pieces received;
  for (int64_t rank = 0; rank < in.num_ranks; ++rank) {
    for (ValuePiece& piece : received_block(given, num_elems, in, rank)) {
      piece.begin += rank * num_elems;
      piece.end += rank * num_elems;
      piece.maker = id;
      append_piece(received, piece);
    }
  }
  values_.write_pieces(ranges[1], std::move(received));
}

void PieceInterpreter::move_blocks(const OpSpec& spec, std::span<const BufferRange> ranges) {
  const std::vector<int64_t> sources = sources_of_blocks(spec)(spec);
  const auto num_blocks = static_cast<int64_t>(sources.size());
  const int64_t num_elems = (ranges[0].end - ranges[0].begin) / num_blocks;
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

void PieceInterpreter::reduce(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id) {
  const PieceGroup& in = group(spec);
  Pieces pieces = read(ranges[0]);
  if (std::ranges::any_of(pieces, [](const ValuePiece& it) { return it.stride > 0; })) {
    shown_.push_back(compute(spec, ranges, hash_value(by_any_engine(spec)), id));
    return;
  }
  for (ValuePiece& piece : pieces) {
    piece.value = names_.sum_over(piece.value, in.hash);
    piece.stride = 0;
    piece.maker = id;
  }
  values_.write_pieces(ranges.back(), std::move(pieces));
}

void PieceInterpreter::shift(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id) {
  const PieceGroup& in = group(spec);
  const int64_t shift = attributes_of<RingShiftAttributes>(spec).shift;
  const int64_t num_elems = ranges[0].end - ranges[0].begin;
  Pieces pieces = read(ranges[0]);
  if (in.has_rows) {
    const int64_t source = modulo(in.rank - shift, in.num_ranks);
    learn_rows(spec, pieces, num_elems, ranges[1].begin + (in.rank - source) * num_elems);
  }
  for (ValuePiece& piece : pieces) {
    piece = on_rank(piece, in, -shift);
    piece.maker = id;
  }
  values_.write_pieces(ranges[1], std::move(pieces));
}

/// `own_first`: the element of the gathered rows at which this rank's begin.
void PieceInterpreter::learn_rows(const OpSpec& spec, const Pieces& given, int64_t num_elems,
                                  int64_t own_first) {
  if (unknown_rows_.empty() || given.size() != 1 || !is_unknown(given.front())) {
    return;
  }
  const int64_t width = width_of(spec.operands[0]);
  const int64_t begin = given.front().first / width;
  const int64_t stride = num_elems / width;
  const int64_t first = own_first / width;
  spread_.learn({.begin = begin,
                 .end = begin + stride,
                 .first = first,
                 .origin = first - rows_group_.rank * stride,
                 .stride = stride});
  knows_more_ = std::ranges::any_of(
      unknown_rows_, [&](int64_t rows) { return spread_.of(rows).has_value(); });
}

void PieceInterpreter::receive(const OpSpec& spec, const BufferRange& range, uint64_t message,
                               TaskId id) {
  const uint64_t value = mixed_hash(message, 1);
  if (spec.operands[0].shape.rank() != 2 || !rows_group_.has_rows) {
    return values_.write(range, value, id);
  }
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t width = spec.operands[0].shape[1];
  const auto runs = spread_.of(rows);
  if (!runs) {
    unknown_rows_.insert(rows);
    return values_.write_pieces(range, {{.begin = 0,
                                         .end = rows * width,
                                         .value = value,
                                         .stride = kUnknownStride,
                                         .maker = id}});
  }
  Pieces pieces;
  for (const SpreadRows::Run& run : *runs) {
    pieces.push_back({.begin = run.begin * width,
                      .end = run.end * width,
                      .value = value,
                      .first = run.first * width,
                      .stride = run.stride * width,
                      .origin = run.origin * width,
                      .maker = id});
  }
  values_.write_pieces(range, std::move(pieces));
}

}  // namespace braid
