#include "passes/analysis/value_pieces.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "passes/analysis/mixed_hash.h"

namespace braid {
namespace {

bool goes_on(const ValuePiece& a, const ValuePiece& b) {
  return a.end == b.begin && a.value == b.value &&
         (a.value == 0 || a.first + (a.end - a.begin) == b.first);
}

uint64_t signed_mixed(uint64_t a, int64_t b) {
  return mixed_hash(a, static_cast<uint64_t>(b));
}

}  // namespace

ValuePiece part_of(ValuePiece piece, int64_t begin, int64_t end) {
  piece.first += piece.value == 0 ? 0 : begin - piece.begin;  // undefined elements have no index
  piece.begin = begin;
  piece.end = end;
  return piece;
}

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

void append_piece(std::vector<ValuePiece>& pieces, const ValuePiece& piece) {
  if (piece.begin >= piece.end) {
    return;
  }
  if (pieces.empty() || !goes_on(pieces.back(), piece)) {
    pieces.push_back(piece);
    return;
  }
  ValuePiece& last = pieces.back();
  last.end = piece.end;
  last.stride = last.stride == piece.stride && last.origin == piece.origin ? last.stride : 0;
}

std::vector<ValuePiece> ValuePieces::read(int64_t begin, int64_t end) const {
  std::vector<ValuePiece> found;
  for (auto it = piece_at(begin); it != pieces_.end() && it->begin < end; ++it) {
    append_piece(found, part_of(*it, std::max(begin, it->begin), std::min(end, it->end)));
  }
  return found;
}

void ValuePieces::write(int64_t begin, int64_t end, std::span<const ValuePiece> pieces) {
  if (begin == end) {
    return;
  }
  const auto first = std::as_const(*this).piece_at(begin) - pieces_.cbegin();
  auto last = first;
  while (std::cmp_less(last, pieces_.size()) && pieces_[static_cast<size_t>(last)].begin < end) {
    ++last;
  }
  std::vector<ValuePiece> fresh;
  const ValuePiece front = pieces_[static_cast<size_t>(first)];
  const ValuePiece back = pieces_[static_cast<size_t>(last - 1)];
  if (front.begin < begin) {
    fresh.push_back(part_of(front, front.begin, begin));
  }
  fresh.insert(fresh.end(), pieces.begin(), pieces.end());
  if (end < back.end) {
    fresh.push_back(part_of(back, end, back.end));
  }
  const auto common = std::min(last - first, static_cast<ptrdiff_t>(fresh.size()));
  std::copy_n(fresh.begin(), common, pieces_.begin() + first);
  if (common < last - first) {
    pieces_.erase(pieces_.begin() + first + common, pieces_.begin() + last);
  } else {
    pieces_.insert(pieces_.begin() + first + common, fresh.begin() + common, fresh.end());
  }
}

std::vector<ValuePiece>::const_iterator ValuePieces::piece_at(int64_t element) const {
  return std::ranges::upper_bound(pieces_, element, {}, &ValuePiece::end);
}

ValueStore::ValueStore(const Program& program) : program_(program) {
  reset();
}

void ValueStore::reset() {
  contents_.clear();
  num_messages_.clear();
  for (const Buffer& buffer : program_.buffers) {
    const bool is_persistent = buffer.lifetime == Lifetime::kPersistent;
    contents_.emplace_back(
        buffer.num_elems(),
        is_persistent ? mixed_hash(std::hash<std::string>()(buffer.name), 1) : 0);
  }
}

std::vector<ValuePiece> ValueStore::read(const BufferRange& range) const {
  return contents_[range.buffer.index()].read(range.begin, range.end);
}

std::vector<ValuePiece> ValueStore::read_from_begin(const BufferRange& range) const {
  std::vector<ValuePiece> pieces = read(range);
  for (ValuePiece& piece : pieces) {
    piece.begin -= range.begin;
    piece.end -= range.begin;
  }
  return pieces;
}

void ValueStore::write(const BufferRange& range, uint64_t value, TaskId maker) {
  const ValuePiece piece{.begin = range.begin, .end = range.end, .value = value, .maker = maker};
  contents_[range.buffer.index()].write(range.begin, range.end, std::span(&piece, 1));
}

void ValueStore::write_pieces(const BufferRange& range, std::vector<ValuePiece> pieces) {
  for (ValuePiece& piece : pieces) {
    piece.begin += range.begin;
    piece.end += range.begin;
  }
  contents_[range.buffer.index()].write(range.begin, range.end, pieces);
}

void ValueStore::move(const BufferRange& from, const BufferRange& to) {
  write_pieces(to, read_from_begin(from));
}

uint64_t ValueStore::message(uint64_t hash, const Label& label) {
  for (const int32_t part : {label.microbatch, label.virtual_stage, label.layer}) {
    hash = signed_mixed(hash, part);
  }
  if (label.site.valid()) {
    hash = mixed_hash(hash, std::hash<std::string>()(program_.sites[label.site.index()]));
  }
  return mixed_hash(hash, num_messages_[hash]++);
}

bool is_alone_in_group(const Program& program, const OpSpec& spec) {
  return ranks_of_group(program, spec) == 1;
}

int64_t ranks_of_group(const Program& program, const OpSpec& spec) {
  const std::optional<GroupId> group = group_of(program, spec);
  return group ? static_cast<int64_t>(program.groups[group->index()].ranks.size()) : 0;
}

bool is_x_to_y(const OpSpec& spec) {
  return spec.operands.size() == 2 && spec.operands[0].access == Access::kRead &&
         spec.operands[1].access == Access::kWrite &&
         spec.operands[0].dtype == spec.operands[1].dtype;
}

}  // namespace braid
