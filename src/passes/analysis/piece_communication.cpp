// What PieceInterpreter knows of the data of other ranks.
#include <algorithm>
#include <iterator>
#include <utility>

#include "ops/attributes.h"
#include "ops/collectives.h"
#include "passes/analysis/mixed_hash.h"
#include "passes/analysis/piece_interpreter.h"

namespace braid {
namespace {

int64_t modulo(int64_t a, int64_t n) {
  return (a % n + n) % n;
}

uint64_t signed_mixed(uint64_t a, int64_t b) {
  return mixed_hash(a, static_cast<uint64_t>(b));
}

int64_t width_of(const OperandSpec& operand) {
  return operand.shape.rank() == 2 ? operand.shape[1] : 1;
}

bool is_unknown(const ValuePiece& piece) {
  return piece.stride == kUnknownStride;
}

}  // namespace

/// What the rank `distance` places on has where this rank has `piece`.
ValuePiece PieceInterpreter::on_rank(ValuePiece piece, const PieceGroup& group, int64_t distance) {
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
  knows_more_ = std::ranges::any_of(unknown_rows_,
                                    [&](int64_t rows) { return spread_.of(rows).has_value(); });
}

void PieceInterpreter::receive(const BufferRange& range, uint64_t message, TaskId id) {
  const uint64_t value = mixed_hash(message, 1);
  const Shape& shape =
      program_.buffers[range.buffer.index()].shape;  // that of a message may be flat
  if (shape.rank() != 2 || shape.num_elems() == 0 || !rows_group_.has_rows) {
    return values_.write(range, value, id);
  }
  const int64_t width = shape[1];
  const int64_t rows = (range.end - range.begin) / width;
  const auto runs = spread_.of(rows);
  if (!runs) {
    unknown_rows_.insert(rows);
    return values_.write_pieces(
        range,
        {{.begin = 0, .end = rows * width, .value = value, .stride = kUnknownStride, .maker = id}});
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

// ---- sums

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
    ValuePiece piece = sum_over_ranks(addends, num_elems)
                           .value_or(ValuePiece{.value = value, .first = addends.front().first});
    piece.begin = borders[i - 1];
    piece.end = borders[i];
    piece.maker = id;
    append_piece(sum, piece);
  }
  return sum;
}

/// The sum over the ranks of one value, of which every rank has its own block of `block_elems`:
/// `addends` come in the order of ranks. Nothing if they are something else.
std::optional<ValuePiece> PieceInterpreter::sum_over_ranks(std::span<const ValuePiece> addends,
                                                           int64_t block_elems) {
  const auto& [hash, n, rank, is_tensor, has_rows] = rows_group_;
  if (!has_rows || std::cmp_not_equal(addends.size(), n)) {
    return std::nullopt;
  }
  const ValuePiece& own = addends[static_cast<size_t>(rank)];
  for (int64_t i = 0; i < n; ++i) {
    // Rank i got from this rank the block that is as far from its own as this rank's from i's.
    const ValuePiece& addend = addends[static_cast<size_t>(i)];
    if (addend.value != names_.at(own.value, hash, n, i - rank) || addend.stride != 0 ||
        addend.first != own.first + (modulo(2 * rank - i, n) - rank) * block_elems) {
      return std::nullopt;
    }
  }
  return ValuePiece{.value = names_.sum_over(own.value, hash),
                    .first = own.first,
                    .stride = block_elems,
                    .origin = own.first - own.begin - rank * block_elems};
}

}  // namespace braid
