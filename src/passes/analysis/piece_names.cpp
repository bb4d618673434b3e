#include "passes/analysis/piece_names.h"

#include <utility>

#include "passes/analysis/mixed_hash.h"

namespace braid {
namespace {

constexpr uint64_t kDisplaced = 0xD1;  // kinds of names
constexpr uint64_t kSum = 0x5C;

void append_at_end(std::vector<ValuePiece>& pieces, ValuePiece piece) {
  const int64_t size = piece.end - piece.begin;
  piece.begin = pieces.empty() ? 0 : pieces.back().end;
  piece.end = piece.begin + size;
  append_piece(pieces, piece);
}

}  // namespace

uint64_t PieceNames::at(uint64_t value, uint64_t group, int64_t num_ranks, int64_t distance) {
  if (const auto found = displaced_.find(value);
      found != displaced_.end() && found->second.group == group) {
    distance += found->second.distance;
    value = found->second.value;
  }
  distance = ((distance % num_ranks) + num_ranks) % num_ranks;
  if (value == 0 || distance == 0) {
    return value;
  }
  const uint64_t name =
      mixed_hash(mixed_hash(mixed_hash(kDisplaced, value), group), static_cast<uint64_t>(distance));
  displaced_.try_emplace(name, Displaced{value, group, distance});
  return name;
}

uint64_t PieceNames::sum_over(uint64_t value, uint64_t group) {
  const uint64_t name = mixed_hash(mixed_hash(kSum, value), group);
  if (joins_) {
    sums_.try_emplace(name, Sum{value, group});
  }
  return name;
}

uint64_t PieceNames::product(uint64_t rows, std::vector<std::vector<ValuePiece>> weights) {
  uint64_t name = rows;
  for (const std::vector<ValuePiece>& pieces : weights) {
    for (const ValuePiece& piece : pieces) {
      name = mixed_hash(mixed_hash(name, piece.value),
                        mixed_hash(static_cast<uint64_t>(piece.first),
                                   static_cast<uint64_t>(piece.end - piece.begin)));
    }
    name = mixed_hash(name, pieces.size());
  }
  if (joins_) {
    products_.try_emplace(name, Product{rows, std::move(weights)});
  }
  return name;
}

uint64_t PieceNames::joined(std::span<const uint64_t> values) {
  const auto first = products_.find(values.front());
  if (first == products_.end()) {
    return joined_sums(values);
  }
  Product whole = first->second;
  for (const uint64_t value : values.subspan(1)) {
    const auto next = products_.find(value);
    if (next == products_.end() || next->second.rows != whole.rows ||
        next->second.weights.size() != whole.weights.size()) {
      return 0;
    }
    for (size_t i = 0; i < whole.weights.size(); ++i) {
      for (const ValuePiece& piece : next->second.weights[i]) {
        append_at_end(whole.weights[i], piece);
      }
    }
  }
  return product(whole.rows, std::move(whole.weights));
}

uint64_t PieceNames::joined_sums(std::span<const uint64_t> values) {
  std::vector<uint64_t> addends;
  uint64_t group = 0;
  for (const uint64_t value : values) {
    const auto sum = sums_.find(value);
    if (sum == sums_.end() || (!addends.empty() && sum->second.group != group)) {
      return 0;
    }
    addends.push_back(sum->second.value);
    group = sum->second.group;
  }
  const uint64_t addend = joined(addends);
  return addend == 0 ? 0 : sum_over(addend, group);
}

}  // namespace braid
