#include "plan/more_room.h"

#include <gtest/gtest.h>

#include "config/load.h"
#include "config/validate.h"

namespace braid {
namespace {

RunSpec run_with(double capacity) {
  const std::vector<std::string> keys{"model.experts=8",
                                      "model.experts_per_token=4",
                                      "model.expert_ffn=8",
                                      "model.width=32",
                                      "model.layers=1",
                                      "model.heads=4",
                                      "model.kv_heads=2",
                                      "train.sequence=16",
                                      "train.microbatch=2",
                                      "train.global_batch=8",
                                      "parallel.ranks=4",
                                      "parallel.expert=4",
                                      fmt::format("moe.capacity={}", capacity)};
  return resolve_run(resolved(parse_config("", "more_room", keys)), 50);
}

// 2 of a token's 4 rows can come to one of 4 ranks, twice as many as with equal loads.
TEST(MoreRoom, DoublesUntilAllRowsHaveRoom) {
  const RunSpec run = run_with(0.6);
  EXPECT_TRUE(may_overflow(run));
  EXPECT_EQ(describe_room(run), "moe.capacity = 0.6");
  const RunSpec twice = with_more_room(run).value();
  EXPECT_EQ(twice.parallel.expert_capacity, 1.2);
  EXPECT_EQ(twice.config, run.config);
  const RunSpec all = with_more_room(twice).value();
  EXPECT_EQ(all.parallel.expert_capacity, 0);
  EXPECT_EQ(describe_room(all), "room for all rows");
  EXPECT_FALSE(with_more_room(all).has_value());
}

TEST(MoreRoom, IsNotNeededWhereAllRowsHaveRoom) {
  EXPECT_FALSE(may_overflow(run_with(0)));
  EXPECT_FALSE(may_overflow(run_with(2)));
  EXPECT_TRUE(may_overflow(run_with(1.99)));
  RunSpec alone = run_with(1);
  alone.mesh = Mesh(MeshSizes{.data = 4});
  EXPECT_FALSE(may_overflow(alone));
}

TEST(MoreRoom, PlansTheSameRanksWithTheSameState) {
  const RunPlan tight = plan_run(run_with(0.5), {.ranks = {2, 0}});
  const RunPlan full = plan_again(tight, with_full_room(tight.run));
  ASSERT_EQ(full.ranks.size(), 2u);
  EXPECT_EQ(full.ranks[0].programs[kTrainProgram].rank, 2);
  for (size_t i = 0; i < 2; ++i) {
    const MemoryPlan& before = tight.ranks[i].memory;
    const MemoryPlan& after = full.ranks[i].memory;
    EXPECT_EQ(after.persistent_offset_bytes, before.persistent_offset_bytes);
    EXPECT_EQ(after.persistent_bytes, before.persistent_bytes);
    EXPECT_GT(after.step_bytes, before.step_bytes);
  }
}

}  // namespace
}  // namespace braid
