#include "data/bpe_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "data/random_state.h"

namespace braid {
namespace {

/// 256 bytes, and merges of random earlier tokens.
struct RandomBpe {
  std::vector<std::string> tokens;
  std::vector<BpeMerge> merges;

  explicit RandomBpe(uint64_t seed) {
    for (int byte = 0; byte < 256; ++byte) {
      tokens.emplace_back(1, static_cast<char>(byte));
    }
    RandomState random(seed);
    std::vector<int32_t> used = {'a', 'b', 'c'};  // few, so that merges overlap
    while (merges.size() < 60) {
      const int32_t left = used[random.next_at_most(used.size() - 1)];
      const int32_t right = used[random.next_at_most(used.size() - 1)];
      const std::string merged =
          tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)];
      if (merged.size() > 12 || std::ranges::find(tokens, merged) != tokens.end()) {
        continue;
      }
      merges.push_back({left, right, static_cast<int32_t>(tokens.size())});
      used.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(merged);
    }
  }

  /// By the definition: the first merge of the list that is possible, at its leftmost place.
  std::vector<int32_t> slowly(std::string_view word) const {
    std::vector<int32_t> ids;
    for (const char c : word) {
      ids.push_back(static_cast<unsigned char>(c));
    }
    while (true) {
      const auto first = std::ranges::find_if(
          merges, [&](const BpeMerge& merge) { return place_of(merge, ids) + 1 < ids.size(); });
      if (first == merges.end()) {
        return ids;
      }
      const size_t at = place_of(*first, ids);
      ids[at] = first->merged;
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
  }

  static size_t place_of(const BpeMerge& merge, const std::vector<int32_t>& ids) {
    size_t at = 0;
    while (at + 1 < ids.size() && (ids[at] != merge.left || ids[at + 1] != merge.right)) {
      ++at;
    }
    return at;
  }
};

std::string random_word(RandomState& random, size_t size) {
  std::string word;
  while (word.size() < size) {
    word += static_cast<char>('a' + random.next_at_most(2));
  }
  return word;
}

std::vector<int32_t> encoded(const BpeModel& model, std::string_view word) {
  std::vector<int32_t> ids;
  model.encode(word, ids);
  return ids;
}

TEST(BpeModel, MergesByTheOrderOfTheList) {
  RandomState random(5);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RandomBpe bpe(seed);
    const BpeModel model(bpe.tokens, bpe.merges, {});
    for (const size_t size : {1, 2, 3, 7, 20, 127, 128, 129, 300}) {  // both ways of merging
      const std::string word = random_word(random, size);
      EXPECT_EQ(encoded(model, word), bpe.slowly(word)) << seed << " " << word;
    }
    for (const std::string& token : bpe.tokens) {  // also those that merges do not lead to
      EXPECT_EQ(encoded(model, token), bpe.slowly(token)) << seed << " " << token;
    }
  }
}

TEST(BpeModel, TakesWholeWordsIfAsked) {
  RandomBpe bpe(1);
  bpe.tokens.emplace_back("cab!");
  const BpeModel whole(bpe.tokens, bpe.merges, {.takes_whole_words = true});
  EXPECT_EQ(encoded(whole, "cab!"), (std::vector<int32_t>{316}));
  EXPECT_EQ(encoded(whole, "cab!x").back(), 'x');
  EXPECT_EQ(encoded(BpeModel(bpe.tokens, bpe.merges, {}), "cab!").back(), '!');
}

// Time n log n: with n squared this would take hours.
TEST(BpeModel, LongWordsAreQuick) {
  const RandomBpe bpe(2);
  RandomState random(1);
  const std::string word = random_word(random, 100'000);
  const std::vector<int32_t> ids = encoded(BpeModel(bpe.tokens, bpe.merges, {}), word);
  std::string text;
  for (const int32_t id : ids) {
    text += bpe.tokens[static_cast<size_t>(id)];
  }
  EXPECT_EQ(text, word);
  EXPECT_LT(ids.size(), word.size() * 3 / 4);
}

}  // namespace
}  // namespace braid
