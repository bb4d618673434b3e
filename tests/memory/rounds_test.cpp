#include "memory/rounds.h"

#include <gtest/gtest.h>

#include "memory/max_live.h"
#include "memory/order_matrix.h"
#include "memory/programs.h"

namespace braid {
namespace {

TEST(PackInRounds, IsNeverWorseWithMoreRoundsAndMostlyReachesTheBound) {
  int num_missed = 0;
  int num_reached_later = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Program program = random_small_program(seed);
    const TaskOrder order(program);
    const LiveRanges ranges(program, order);
    const std::vector<int64_t> sizes = sizes_of(program);
    const int64_t bound = find_max_live(program, order, ranges, sizes).bytes;
    const int64_t first = pack_in_rounds(ranges, sizes, bound, 1).arena_bytes;
    const Packing best = pack_in_rounds(ranges, sizes, bound, 100);
    ASSERT_LE(best.arena_bytes, first) << "seed " << seed;
    ASSERT_TRUE(OrderMatrix(program).is_conflict_free(program, best.offset_bytes))
        << "seed " << seed;
    num_missed += first > bound ? 1 : 0;
    num_reached_later += first > bound && best.arena_bytes == bound ? 1 : 0;
  }
  EXPECT_GT(num_missed, 50);
  EXPECT_GT(num_reached_later, num_missed / 2);
}

}  // namespace
}  // namespace braid
