#include "emulate/rank_emulation.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/expect_error.h"
#include "emulate/describe_emulation.h"
#include "plan/emulated_peers.h"
#include "plan/rank_programs.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "support/emulated_layouts.h"
#include "support/thinned.h"

namespace braid {
namespace {

class RankEmulationTest : public ::testing::TestWithParam<std::string> {
 protected:
  RankEmulationTest() = default;

  const RunConfig config_ = emulated_layout(small_planned_run(), GetParam(), 4);
  const std::unique_ptr<CostModel> model_ = make_analytic_model(parse_cluster("h200x4"));
  const SimulatedRun run_{resolve_run(config_, 0),
                          *model_,
                          {.starts_on_arrival = true},
                          PlannedRanks::kEveryPlaceInFull};
};

INSTANTIATE_TEST_SUITE_P(Layouts, RankEmulationTest,
                         ::testing::ValuesIn(thinned<std::string>(
                             {"tensor_pipeline", "tensor_copies", "parameters", "experts", "ring",
                              "a2a", "experts_in_blocks", "experts_over_hosts"},
                             2)),
                         [](const auto& layout) { return layout.param; });

TEST_P(RankEmulationTest, EveryRankRunsAlone) {
  for (const RankPlan& planned : run_.plan().ranks) {
    const int rank = planned.programs[kTrainProgram].rank;
    SCOPED_TRACE(rank);
    const RankEmulation result = emulate_rank(run_.plan(), rank, emulated_peers(run_, rank),
                                              {.warmup_steps = 0, .steps = 1});
    EXPECT_EQ(result.step_ns.size(), 1u);
    EXPECT_EQ(result.planned_bytes, planned.memory.peak_bytes());
    EXPECT_EQ(result.lasting_bytes, 0);
    EXPECT_EQ(result.allocated_bytes, result.planned_bytes);
    EXPECT_EQ(result.driver_bytes, std::nullopt);
    ASSERT_EQ(result.timeline.ranks.size(), 1u);
    EXPECT_EQ(result.timeline.ranks.front().rank, rank);
    EXPECT_EQ(result.timeline.ranks.front().tasks.size(),
              planned.programs[kTrainProgram].tasks.size());
  }
}

TEST_P(RankEmulationTest, WhatPeersSendOnceTakesMemoryOfItsOwn) {
  EmulatedPeers peers = emulated_peers(run_, 0);
  peers.anew_bytes = 4096;  // all but norms and what they are made of
  const RankEmulation result = emulate_rank(run_.plan(), 0, peers, {.warmup_steps = 0, .steps = 2});
  EXPECT_GT(result.lasting_bytes, 0);
  EXPECT_EQ(result.allocated_bytes, result.planned_bytes + result.lasting_bytes);
  EXPECT_THAT(result.notes, ::testing::IsEmpty());  // all numbers are finite
  EXPECT_THAT(
      describe_emulation(result, run_),
      ::testing::ContainsRegex("planned .+ [+] .+ for the data of other ranks = allocated"));
}

// The durations are given: of what the simulator says, twenty times as much.
TEST_P(RankEmulationTest, CommunicationTakesTheTimeThatItIsGiven) {
  EmulatedPeers peers = emulated_peers(run_, 0);
  for (int64_t& ns : peers.task_ns[kTrainProgram]) {
    ns *= 20;
  }
  const RankEmulation result = emulate_rank(run_.plan(), 0, peers, {.warmup_steps = 0, .steps = 1});
  size_t communications = 0;
  for (const TimelineTask& task : result.timeline.ranks.front().tasks) {
    if (task.communication) {
      EXPECT_GE(task.end_ns - task.start_ns, peers.task_ns[kTrainProgram][task.task]);
      ++communications;
    }
  }
  EXPECT_GT(communications, 0u);
}

TEST_P(RankEmulationTest, IsDescribedBesideItsSimulation) {
  const RankEmulation result =
      emulate_rank(run_.plan(), 0, emulated_peers(run_, 0), {.warmup_steps = 0, .steps = 2});
  const auto json = nlohmann::json::parse(emulation_json(result, run_));
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["step_ns"], result.median_step_ns());
  EXPECT_EQ(json["simulated_step_ns"], run_.step_ns());
  EXPECT_FALSE(json.contains("driver_bytes"));
  for (const char* side : {"measured", "simulated"}) {
    SCOPED_TRACE(side);
    const auto& of = json[side];
    EXPECT_EQ(of["compute_ns"].get<int64_t>() + of["exposed_ns"].get<int64_t>() +
                  of["copy_ns"].get<int64_t>() + of["idle_ns"].get<int64_t>(),
              of["step_ns"].get<int64_t>());
    EXPECT_GT(of["ops"]["adamw"]["ns"].get<int64_t>(), 0);
    EXPECT_EQ(of["ops"]["adamw"]["tasks"], json["measured"]["ops"]["adamw"]["tasks"]);
    int64_t longest_ns = 0;  // of the kinds of groups; no place can take longer than its kind
    for (const auto& kind : of["communication"]) {
      longest_ns = std::max(longest_ns, kind["total_ns"].get<int64_t>());
    }
    EXPECT_FALSE(of["places"].empty());
    for (const auto& [name, place] : of["places"].items()) {
      EXPECT_EQ(place["times"], json["measured"]["places"][name]["times"]) << name;
      EXPECT_LE(place["exposed_ns"], place["total_ns"]) << name;
      EXPECT_LE(place["total_ns"].get<int64_t>(), longest_ns) << name;
    }
  }
  const std::string text = describe_emulation(result, run_);
  for (const char* part :
       {"step      ", " ms, median of 2 (", "on each of 4 ranks; simulated ", "\nexposed   ",
        "\nmemory    planned ", " = allocated\n", "\ncommunication ", "\nadamw "}) {
    EXPECT_THAT(text, ::testing::HasSubstr(part));
  }
}

/// Ranks with different experts whose routers' choices are drawn.
RunSpec skewed_run(double capacity) {
  RunConfig config = emulated_layout(small_planned_run(), "experts", 4);
  config.moe.force_skew = 0.5;
  config.moe.capacity = capacity;
  return resolve_run(config, 0);
}

TEST(SkewedEmulation, TheRankIsTheBusiestOneAndSimulatedAsSuch) {
  const std::unique_ptr<CostModel> model = make_analytic_model(parse_cluster("h200x4"));
  SimulatedRun run(skewed_run(0), *model, {.starts_on_arrival = true},
                   PlannedRanks::kEveryPlaceInFull);
  const auto given = emulated_load(run.plan(), 0);
  ASSERT_TRUE(given);
  const EmulatedLoad load = *given;
  EXPECT_GT(load.mean, 1.1);
  EXPECT_GE(load.worst, load.mean);
  EXPECT_LE(load.worst, 4);  // all rows come to this rank
  const int64_t balanced_ns = run.step_ns();
  const int64_t skewed_ns = run.step_ns_with_load(load.mean);
  run.set_routed_load(load.mean);
  EXPECT_EQ(run.step_ns(), skewed_ns);
  EXPECT_GT(skewed_ns, balanced_ns);
  EmulatedPeers peers = emulated_peers(run, 0);
  peers.anew_bytes = 0;  // exchanged rows are made in each step nevertheless
  const RankEmulation result = emulate_rank(run.plan(), 0, peers, {.warmup_steps = 0, .steps = 1});
  EXPECT_THAT(result.notes, ::testing::IsEmpty());  // all numbers are finite: no row was dropped
  EXPECT_EQ(result.allocated_bytes, result.planned_bytes + result.lasting_bytes);
  EXPECT_THAT(describe_emulation(result, run), ::testing::HasSubstr("\nrouting   given: "));
  EXPECT_EQ(nlohmann::json::parse(emulation_json(result, run))["load"], load.mean);
}

TEST(SkewedEmulation, RowsWithoutRoomAreRefusedWithTheRoomThatTheyNeed) {
  const std::unique_ptr<CostModel> model = make_analytic_model(parse_cluster("h200x4"));
  const SimulatedRun run(skewed_run(1.01), *model, {.starts_on_arrival = true},
                         PlannedRanks::kEveryPlaceInFull);
  EXPECT_THAT(message_of<ConfigError>([&] { emulated_load(run.plan(), 0); }),
              ::testing::ContainsRegex("moe.capacity = 1.01: up to .+ times the rows of equal "
                                       "loads come to rank 0; set moe.capacity = "));
}

TEST(SkewedEmulation, ExpertsWithACapacityAreRefused) {
  const std::unique_ptr<CostModel> model = make_analytic_model(parse_cluster("h200x4"));
  RunConfig config = emulated_layout(small_planned_run(), "experts", 4);
  config.moe.force_skew = 0.5;
  config.moe.expert_capacity = 1.5;
  const SimulatedRun run(resolve_run(config, 0), *model, {.starts_on_arrival = true},
                         PlannedRanks::kEveryPlaceInFull);
  EXPECT_THAT(message_of<ConfigError>([&] { emulated_load(run.plan(), 0); }),
              ::testing::HasSubstr("moe.expert_capacity = 1.5: emulated ranks send all rows"));
}

}  // namespace
}  // namespace braid
