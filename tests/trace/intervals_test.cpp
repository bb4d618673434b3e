#include "trace/intervals.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace braid {
namespace {

using Intervals = std::vector<Interval>;

TEST(Intervals, MergeJoinsWhatOverlapsOrTouches) {
  EXPECT_EQ(merge_intervals({{5, 7}, {0, 2}, {2, 3}, {6, 9}, {4, 4}, {6, 7}}),
            (Intervals{{0, 3}, {5, 9}}));
  EXPECT_EQ(merge_intervals({}), Intervals{});
}

TEST(Intervals, AgreeWithCountingEachNanosecond) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<bool> in[2] = {std::vector<bool>(60), std::vector<bool>(60)};
    Intervals lists[2];
    for (int which = 0; which < 2; ++which) {
      for (uint32_t i = random() % 8; i > 0; --i) {
        const auto begin = static_cast<int64_t>(random() % 50);
        const auto end = begin + static_cast<int64_t>(random() % 10);
        lists[which].push_back({begin, end});
        std::fill(in[which].begin() + begin, in[which].begin() + end, true);
      }
      lists[which] = merge_intervals(lists[which]);
      EXPECT_EQ(total_ns(lists[which]), std::count(in[which].begin(), in[which].end(), true));
    }
    int64_t both = 0;
    for (size_t i = 0; i < 60; ++i) {
      both += in[0][i] && in[1][i] ? 1 : 0;
    }
    EXPECT_EQ(overlap_ns(lists[0], lists[1]), both);
    EXPECT_EQ(overlap_ns(lists[1], lists[0]), both);
  }
}

}  // namespace
}  // namespace braid
