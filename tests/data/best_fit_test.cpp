#include "data/best_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

namespace braid {
namespace {

using ::testing::ElementsAre;

// Longest first: 5 and 5 of document 1 and its rest of 2, 4, 3, 3, 2. The rest goes to 3, whose
// room is the least; the second 3 opens a sample, which 2 fills.
TEST(BestFit, PutsAPieceWhereTheLeastRoomIsLeft) {
  const std::vector<int32_t> lengths = {3, 12, 4, 3, 2};
  const BestFitPacking packing = pack_best_fit(lengths, 5);
  EXPECT_THAT(packing.pieces,
              ElementsAre(PackedPiece{1, 0, 5}, PackedPiece{1, 5, 5}, PackedPiece{2, 0, 4},
                          PackedPiece{0, 0, 3}, PackedPiece{4, 0, 2}, PackedPiece{3, 0, 3},
                          PackedPiece{1, 10, 2}));
  EXPECT_THAT(packing.first_pieces, ElementsAre(0, 1, 2, 3, 5, 7));
  EXPECT_EQ(packing.cut_documents, 1);
  EXPECT_EQ(packing.packed_tokens, 24);
}

TEST(BestFit, LeavesOutTokensWithoutALabel) {
  const std::vector<int32_t> lengths = {1, 0, 6, 5};
  const BestFitPacking packing = pack_best_fit(lengths, 5);
  EXPECT_THAT(packing.pieces, ElementsAre(PackedPiece{2, 0, 5}, PackedPiece{3, 0, 5}));
}

TEST(BestFit, OfNothingIsNothing) {
  EXPECT_EQ(pack_best_fit({}, 8).num_samples(), 0);
  EXPECT_EQ(pack_best_fit(std::vector<int32_t>{1, 1}, 8).num_samples(), 0);
}

// Random lengths: each token of a document with at least two once, no sample too full, no two
// samples that would fit into one.
TEST(BestFit, HasEachTokenOnceAndNoSampleToSpare) {
  constexpr int64_t kSample = 64;
  std::mt19937 random(1);
  std::vector<int32_t> lengths(3000);
  for (int32_t& length : lengths) {
    length = static_cast<int32_t>(random() % 100);
  }
  const BestFitPacking packing = pack_best_fit(lengths, kSample);
  std::map<int64_t, int64_t> next_offset;
  std::vector<PackedPiece> pieces = packing.pieces;
  std::ranges::sort(pieces, {}, [](const PackedPiece& piece) {
    return std::pair(piece.document, piece.offset_tokens);
  });
  for (const PackedPiece& piece : pieces) {
    EXPECT_EQ(piece.offset_tokens,
              std::exchange(next_offset[piece.document], piece.offset_tokens + piece.tokens));
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_GE(next_offset[static_cast<int64_t>(i)], lengths[i] - 1);
  }
  std::vector<int64_t> filled;
  for (int64_t sample = 0; sample < packing.num_samples(); ++sample) {
    int64_t sum = 0;
    for (auto i = packing.first_pieces[static_cast<size_t>(sample)];
         i < packing.first_pieces[static_cast<size_t>(sample) + 1]; ++i) {
      sum += packing.pieces[static_cast<size_t>(i)].tokens;
    }
    EXPECT_LE(sum, kSample);
    filled.push_back(sum);
  }
  std::ranges::sort(filled);
  EXPECT_GT(filled[0] + filled[1], kSample);
}

}  // namespace
}  // namespace braid
