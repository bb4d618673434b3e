#include "passes/pipeline/weave.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

namespace braid {
namespace {

using ::testing::ElementsAre;

/// "5 c3 5": compute of 5, a call of 3, compute of 5. Each item follows the one before it,
/// but compute does not wait for a call that is written "b3": only the next but one does.
std::vector<WeaveItem> list(const std::string& text, uint32_t first) {
  std::vector<WeaveItem> items;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    const bool calls = word[0] == 'c' || word[0] == 'b';
    WeaveItem item{.ns = std::stoll(word.substr(calls ? 1 : 0)),
                   .channel = calls ? uint8_t{0} : WeaveItem::kCompute,
                   .predecessors = {}};
    const auto position = first + static_cast<uint32_t>(items.size());
    if (!items.empty()) {
      const bool is_beside = at >= 2 && text[text.rfind(' ', at - 2) + 1] == 'b';
      item.predecessors.push_back(is_beside ? position - 2 : position - 1);
      if (items.size() >= 2 && !is_beside) {
        item.predecessors.insert(item.predecessors.begin(), position - 2);
      }
    }
    items.push_back(item);
    at = end + 1;
  }
  return items;
}

struct Lists {
  std::vector<WeaveItem> items;
  uint32_t num_first = 0;
};

Lists two(const std::string& a, const std::string& b) {
  Lists lists{list(a, 0), 0};
  lists.num_first = static_cast<uint32_t>(lists.items.size());
  const std::vector<WeaveItem> second = list(b, lists.num_first);
  lists.items.insert(lists.items.end(), second.begin(), second.end());
  return lists;
}

Woven weave_two(const Lists& lists) {
  return weave(lists.items, lists.num_first);
}

TEST(Weave, AlternatesFromWaitToWait) {
  const Woven woven = weave_two(two("4 c4 4 c4 4", "4 c4 4 c4 4"));
  EXPECT_THAT(woven.order, ElementsAre(0, 1, 5, 6, 2, 3, 7, 8, 4, 9));
  EXPECT_EQ(woven.unwoven_ns, 2 * (3 * 4 + 2 * 4));
  EXPECT_EQ(woven.ns, 6 * 4);
  EXPECT_TRUE(woven.is_woven());
}

TEST(Weave, LeavesListsThatHideNothing) {
  const Woven woven = weave_two(two("4 4", "4 4 4"));
  EXPECT_THAT(woven.order, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_FALSE(woven.is_woven());
  EXPECT_FALSE(weave_two(two("4 c4 4", "0")).is_woven());
}

// The gather after the short task in the middle is queued while the other list computes.
TEST(Weave, ShortTasksBetweenTwoCallsDoNotWaitForAWholeSegment) {
  const Woven woven = weave_two(two("6 c2 1 c2 6", "3 3 3 3 c1 1"));
  EXPECT_EQ(woven.ns, 6 + 12 + 1 + 6 + 1);
}

// What is left when all communication is under way fills the waits of the other list.
TEST(Weave, ComputeWithoutCallsFillsWaits) {
  const Woven woven = weave_two(two("2 c4 2 c4 2", "2 c2 4 4"));
  EXPECT_EQ(woven.ns, 2 + 2 + 2 + 2 + 4 + 4);
}

// A call that has a product of its own job beside it needs nothing of the other one.
TEST(Weave, GoesOnBesideItsOwnCalls) {
  const Woven woven = weave_two(two("4 b4 4 4", "4 b4 4 4"));
  EXPECT_FALSE(woven.is_woven());
  EXPECT_EQ(woven.ns, 24);
}

TEST(Weave, KeepsWhatDependsOnTheOtherListBehindIt) {
  Lists lists = two("4 c4 4 c4 4", "4 c4 4");
  lists.items[5].predecessors.push_back(4);  // all of the second list follows the first
  const Woven woven = weave_two(lists);
  EXPECT_THAT(woven.order, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_FALSE(woven.is_woven());
}

/// When the last item of this order ends, by the rules of the header, written down once more.
int64_t end_of(const Lists& lists, const std::vector<uint32_t>& order) {
  std::array<int64_t, 256> free{};
  std::vector<int64_t> ended(lists.items.size(), -1);
  for (const uint32_t at : order) {
    const WeaveItem& item = lists.items[at];
    for (const uint32_t on : item.predecessors) {
      EXPECT_GE(ended[on], 0) << at << " in front of " << on;
      free[item.channel] = std::max(free[item.channel], ended[on]);
    }
    free[item.channel] += item.ns;
    ended[at] = free[item.channel];
  }
  return *std::ranges::max_element(ended);
}

Lists random_lists(std::mt19937& random, uint32_t size) {
  const auto number = [&](int limit) { return static_cast<int>(random() % limit); };
  Lists lists{std::vector<WeaveItem>(2 * size), size};
  for (uint32_t i = 0; i < lists.items.size(); ++i) {
    WeaveItem& item = lists.items[i];
    item.ns = number(9);
    item.channel = number(3) == 0 ? static_cast<uint8_t>(number(2)) : WeaveItem::kCompute;
    const uint32_t begin = i < size ? 0 : size;
    for (uint32_t on = 0; on < i; ++on) {
      if (on >= begin ? number(2) == 0 : number(30) == 0) {
        item.predecessors.push_back(on);
      }
    }
  }
  return lists;
}

/// The best of all merges.
int64_t best_end(const Lists& lists) {
  const auto size = static_cast<uint32_t>(lists.items.size());
  std::vector<bool> is_second(size);
  std::fill(is_second.begin() + lists.num_first, is_second.end(), true);
  int64_t best = INT64_MAX;
  do {
    std::array<uint32_t, 2> next = {0, lists.num_first};
    std::vector<uint32_t> order;
    std::vector<bool> seen(size);
    bool is_sound = true;
    for (uint32_t i = 0; i < size && is_sound; ++i) {
      const uint32_t item = next[is_second[i] ? 1 : 0]++;
      is_sound = std::ranges::all_of(lists.items[item].predecessors,
                                     [&](uint32_t on) { return seen[on]; });
      seen[item] = true;
      order.push_back(item);
    }
    best = is_sound ? std::min(best, end_of(lists, order)) : best;
  } while (std::next_permutation(is_second.begin(), is_second.end()));
  return best;
}

TEST(Weave, RandomListsAreMergedSoundlyAndNearlyAsWellAsPossible) {
  std::mt19937 random(20251122);
  int64_t sum = 0;
  int64_t sum_of_best = 0;
  int64_t sum_unwoven = 0;
  for (int round = 0; round < 100; ++round) {
    const Lists lists = random_lists(random, 5);
    const Woven woven = weave_two(lists);
    ASSERT_EQ(woven.order.size(), lists.items.size());
    ASSERT_EQ(end_of(lists, woven.order), woven.ns);
    std::array<int64_t, 2> last = {-1, -1};
    for (const uint32_t item : woven.order) {
      int64_t& before = last[item < lists.num_first ? 0 : 1];
      ASSERT_LT(before, item);
      before = item;
    }
    const int64_t best = best_end(lists);
    ASSERT_GE(woven.ns, best);
    ASSERT_LE(woven.ns, woven.unwoven_ns);
    sum += woven.ns;
    sum_of_best += best;
    sum_unwoven += woven.unwoven_ns;
  }
  EXPECT_LT(sum_of_best, sum_unwoven);
  EXPECT_LT(sum - sum_of_best, (sum_unwoven - sum_of_best) / 4);
}

}  // namespace
}  // namespace braid
