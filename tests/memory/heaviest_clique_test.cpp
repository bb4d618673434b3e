#include "memory/heaviest_clique.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "memory/greedy.h"
#include "memory/max_live.h"
#include "memory/order_matrix.h"
#include "memory/programs.h"

namespace braid {
namespace {

constexpr int64_t kEnough = 1'000'000;

/// By trying every set.
int64_t heaviest_bytes(const LiveRanges& ranges, const std::vector<int64_t>& sizes) {
  std::vector<size_t> members;
  int64_t best = 0;
  const auto extend = [&](auto&& self, size_t next, int64_t bytes) -> void {
    best = std::max(best, bytes);
    for (size_t buffer = next; buffer < sizes.size(); ++buffer) {
      if (ranges.is_used(buffer) && std::all_of(members.begin(), members.end(), [&](size_t member) {
            return ranges.interfere(member, buffer);
          })) {
        members.push_back(buffer);
        self(self, buffer + 1, bytes + sizes[buffer]);
        members.pop_back();
      }
    }
  };
  extend(extend, 0, 0);
  return best;
}

TEST(FindHeaviestClique, IsTheHeaviestOfAllSetsOfRandomPrograms) {
  int num_better = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Program program = random_small_program(seed);
    const TaskOrder order(program);
    const LiveRanges ranges(program, order);
    const std::vector<int64_t> sizes = sizes_of(program);
    const auto clique = find_heaviest_clique(ranges, sizes, kEnough);
    ASSERT_TRUE(clique.has_value()) << "seed " << seed;
    for (const uint32_t a : *clique) {
      for (const uint32_t b : *clique) {
        ASSERT_TRUE(a == b || ranges.interfere(a, b)) << "seed " << seed;
      }
    }
    const int64_t bytes = live_together(program, *clique, sizes).bytes;
    ASSERT_EQ(bytes, heaviest_bytes(ranges, sizes)) << "seed " << seed;
    const int64_t live_bytes = find_max_live(program, order, ranges, sizes).bytes;
    ASSERT_GE(bytes, live_bytes) << "seed " << seed;
    num_better += bytes > live_bytes ? 1 : 0;
  }
  EXPECT_GT(num_better, 10);
}

TEST(FindHeaviestClique, GivesUpAfterItsSteps) {
  int num_given_up = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Program program = random_small_program(seed);
    const LiveRanges ranges(program, TaskOrder(program));
    const std::vector<int64_t> sizes = sizes_of(program);
    ASSERT_FALSE(find_heaviest_clique(ranges, sizes, 0).has_value()) << "seed " << seed;
    const size_t num_edges =
        buffers_by_first_task(ranges, sizes).size() * (ranges.num_queues() + 3);
    const int64_t for_edges = 10 * static_cast<int64_t>(num_edges);
    num_given_up += find_heaviest_clique(ranges, sizes, for_edges + 1) ? 0 : 1;
  }
  EXPECT_GT(num_given_up, 0) << "where the flow that it begins with is not the largest";
}

TEST(FindHeaviestClique, IsEmptyIfNothingIsUsed) {
  const Program program;
  const LiveRanges ranges(program, TaskOrder(program));
  EXPECT_EQ(find_heaviest_clique(ranges, {}, kEnough), std::vector<uint32_t>{});
}

}  // namespace
}  // namespace braid
