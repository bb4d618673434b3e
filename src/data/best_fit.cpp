#include "data/best_fit.h"

#include <algorithm>
#include <map>

namespace braid {
namespace {

constexpr int64_t kFewestTokens = 2;  // the last token of a document has no label

std::vector<PackedPiece> cut(std::span<const int32_t> lengths, int64_t sample_tokens) {
  std::vector<PackedPiece> pieces;
  for (size_t document = 0; document < lengths.size(); ++document) {
    const int64_t length = lengths[document];
    for (int64_t at = 0; length - at >= kFewestTokens; at += sample_tokens) {
      pieces.push_back({static_cast<int64_t>(document), at, std::min(sample_tokens, length - at)});
    }
  }
  return pieces;
}

/// Samples with room, by how much they have.
class OpenSamples {
 public:
  /// The sample with the least room for `tokens`, which it then has less; a new one if none has it.
  int64_t take(int64_t tokens, int64_t sample_tokens) {
    const auto found = by_room_.lower_bound(tokens);
    int64_t room = sample_tokens;
    int64_t sample = count_;
    if (found == by_room_.end()) {
      ++count_;
    } else {
      room = found->first;
      sample = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) {
        by_room_.erase(found);
      }
    }
    if (room - tokens >= kFewestTokens) {
      by_room_[room - tokens].push_back(sample);
    }
    return sample;
  }
  int64_t count() const { return count_; }

 private:
  std::map<int64_t, std::vector<int64_t>> by_room_;
  int64_t count_ = 0;
};

}  // namespace

BestFitPacking pack_best_fit(std::span<const int32_t> lengths, int64_t sample_tokens) {
  std::vector<PackedPiece> pieces = cut(lengths, sample_tokens);
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const auto& a, const auto& b) { return a.tokens > b.tokens; });
  OpenSamples open;
  std::vector<int64_t> samples;
  samples.reserve(pieces.size());
  BestFitPacking packing;
  for (const PackedPiece& piece : pieces) {
    samples.push_back(open.take(piece.tokens, sample_tokens));
    packing.packed_tokens += piece.tokens;
  }
  packing.cut_documents =
      std::ranges::count_if(lengths, [&](int32_t length) { return length > sample_tokens; });
  // Counting sort by sample.
  packing.first_pieces.assign(static_cast<size_t>(open.count() + 1), 0);
  for (const int64_t sample : samples) {
    ++packing.first_pieces[static_cast<size_t>(sample + 1)];
  }
  for (size_t i = 1; i < packing.first_pieces.size(); ++i) {
    packing.first_pieces[i] += packing.first_pieces[i - 1];
  }
  std::vector<int64_t> next(packing.first_pieces.begin(), packing.first_pieces.end());
  packing.pieces.resize(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    packing.pieces[static_cast<size_t>(next[static_cast<size_t>(samples[i])]++)] = pieces[i];
  }
  return packing;
}

}  // namespace braid
