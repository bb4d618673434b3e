#include "emulate/rank_emulation.h"

#include <gmock/gmock.h>

#include "plan/emulated_peers.h"
#include "plan/rank_programs.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "support/emulated_layouts.h"

namespace braid {
namespace {

/// A few layers whose steps take milliseconds.
RunConfig run_of_milliseconds() {
  RunConfig config = small_planned_run();
  config.model.width = 1024;
  config.model.heads = 16;
  config.model.kv_heads = 8;
  config.model.vocabulary = 4096;
  config.train.sequence = 2048;
  config.train.global_batch = 8;
  config.train.microbatch = 1;
  config.train.dtype = "bfloat16";
  return config;
}

class GpuRankEmulation : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (gpus_.usable.empty()) {
      GTEST_SKIP() << gpus_.why_none;
    }
  }
  RankEmulation emulate(int rank, const EmulatedPeers& peers) const {
    return emulate_rank(
        run_.plan(), rank, peers,
        {.device = {.backend = gpus_.backend, .gpu = gpus_.usable.front(), .reason = ""},
         .steps = 3});
  }

  const FoundGpus gpus_ = find_gpus();
  const RunConfig config_ = emulated_layout(run_of_milliseconds(), GetParam(), 8);
  const std::unique_ptr<CostModel> model_ = make_analytic_model(parse_cluster("h200x8"));
  const SimulatedRun run_{resolve_run(config_, 0),
                          *model_,
                          {.starts_on_arrival = true},
                          PlannedRanks::kEveryPlaceInFull};
};

INSTANTIATE_TEST_SUITE_P(Layouts, GpuRankEmulation,
                         ::testing::Values("tensor_pipeline", "tensor_copies", "parameters",
                                           "experts", "ring", "a2a"),
                         [](const auto& layout) { return layout.param; });

TEST_P(GpuRankEmulation, FirstAndLastRankRunAloneInTheirPlannedMemory) {
  for (const RankPlan* const planned : {&run_.plan().ranks.front(), &run_.plan().ranks.back()}) {
    const int rank = planned->programs[kTrainProgram].rank;
    SCOPED_TRACE(rank);
    const RankEmulation result = emulate(rank, emulated_peers(run_, rank));
    EXPECT_EQ(result.allocated_bytes, planned->memory.peak_bytes());
    ASSERT_TRUE(result.driver_bytes.has_value());
    EXPECT_GE(*result.driver_bytes, result.allocated_bytes);
    EXPECT_EQ(result.timeline.ranks.front().rank, rank);
  }
}

TEST_P(GpuRankEmulation, WhatPeersSendOnceTakesMemoryOfItsOwn) {
  EmulatedPeers peers = emulated_peers(run_, 0);
  peers.anew_bytes = kSmallResultBytes / 4;
  const RankEmulation result = emulate(0, peers);
  EXPECT_EQ(result.allocated_bytes, result.planned_bytes + result.lasting_bytes);
}

// Also where calls of several streams run at the same time.
TEST_P(GpuRankEmulation, CommunicationTakesTheTimeThatItIsGiven) {
  constexpr int64_t kNs = 2'000'000;
  EmulatedPeers peers = emulated_peers(run_, 0);
  for (int64_t& ns : peers.task_ns[kTrainProgram]) {
    ns = kNs;
  }
  const RankEmulation result = emulate(0, peers);
  const RankTimeline& timeline = result.timeline.ranks.front();
  std::vector<int64_t> took;
  for (const TimelineTask& task : timeline.tasks) {
    if (task.communication && task.sequence != TimelineTask::kNoSequence) {
      took.push_back(task.end_ns - task.start_ns);
      EXPECT_GE(took.back(), kNs * 95 / 100) << timeline.names[task.name];
    }
  }
  ASSERT_FALSE(took.empty());
  std::ranges::sort(took);
  EXPECT_LE(took[took.size() / 2], kNs * 105 / 100);
}

}  // namespace
}  // namespace braid
