#include "plan/communicators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/registry/registry.h"
#include "config/validate.h"
#include "plan/memory_needs.h"
#include "plan/run_plan.h"
#include "plan/run_spec.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

TEST(CountMessagePairs, IsByNeighboursAndDirections) {
  ScheduleOptions schedule{.num_ranks = 4, .num_microbatches = 8};
  EXPECT_THAT(count_message_pairs(schedule), ElementsAre(2, 4, 4, 2));
  schedule.kind = ScheduleKind::kInterleaved;
  schedule.virtual_stages = 2;
  EXPECT_THAT(count_message_pairs(schedule), ElementsAre(4, 4, 4, 4));
  schedule.num_ranks = 2;
  EXPECT_THAT(count_message_pairs(schedule), ElementsAre(4, 4));
  schedule.kind = ScheduleKind::kZbV;
  schedule.num_ranks = 3;
  EXPECT_THAT(count_message_pairs(schedule), ElementsAre(4, 8, 4));
  EXPECT_THAT(count_message_pairs({}), ElementsAre(0));
}

int64_t nccl_bytes(const RankPlan& rank) {
  for (const MemoryNeeds::Part& part : rank_needs(backend_named("cuda"), rank, {}).parts) {
    if (part.what == "NCCL") {
      return part.bytes;
    }
  }
  return 0;
}

/// Ranks whose only groups are those that are counted.
class PlannedCommunicators : public ::testing::TestWithParam<ParallelConfig> {};

TEST_P(PlannedCommunicators, AreThoseThatAreCounted) {
  RunConfig config;
  config.model.layers = 8;
  config.model.width = 32;
  config.model.heads = 2;
  config.model.vocabulary = 64;
  config.model.tied_embeddings = GetParam().pipeline == 4;
  config.train.sequence = 8;
  config.train.global_batch = 32;
  config.train.dtype = "bfloat16";
  config.overlap.mode = "off";
  config.parallel = GetParam();
  config.data.train = config.logging.run_folder = "unused";
  const RunSpec run = resolve_run(resolved(config), 0);
  const std::vector<ParameterDomain> domains =
      parameter_domains(run.mesh, run.parallel, /*has_experts=*/false);
  const std::vector<int64_t> pairs = count_message_pairs(run.schedule());
  const RunPlan plan = plan_run(run);
  for (const RankPlan& rank : plan.ranks) {
    const int stage = run.mesh.position(rank.programs[kTrainProgram].rank).pipeline;
    const bool is_end = stage == 0 || stage + 1 == run.mesh.sizes().pipeline;
    EXPECT_EQ(communicator_bytes({.backend = "cuda"}, run.mesh, domains,
                                 is_end && *config.model.tied_embeddings,
                                 pairs[static_cast<size_t>(stage)]),
              nccl_bytes(rank))
        << "stage " << stage;
  }
  EXPECT_GT(nccl_bytes(plan.ranks.front()), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, PlannedCommunicators,
    ::testing::Values(
        ParallelConfig{.ranks = 4},
        ParallelConfig{.ranks = 8, .shard = "optimizer", .shard_replicas = 2},
        ParallelConfig{
            .ranks = 8, .shard = "optimizer", .shard_replicas = 2, .shard_over_replicas = true},
        ParallelConfig{.ranks = 4, .shard = "parameters"},
        ParallelConfig{.ranks = 8, .pipeline = 4},
        ParallelConfig{.ranks = 8,
                       .pipeline = 4,
                       .virtual_stages = 2,
                       .schedule = "interleaved",
                       .shard = "optimizer"},
        ParallelConfig{.ranks = 3, .pipeline = 3, .virtual_stages = 2, .schedule = "zb-v"}));

}  // namespace
}  // namespace braid
