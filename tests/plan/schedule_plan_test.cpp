#include "plan/schedule_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/load.h"
#include "config/validate.h"
#include "memory/quick_plan.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RunConfig config_with(const std::vector<std::string>& keys) {
  std::vector<std::string> overrides = {
      "model.layers=4",        "model.width=1024",     "model.heads=8",
      "model.vocabulary=4096", "train.sequence=1024",  "train.microbatch=1",
      "train.global_batch=8",  "train.dtype=bfloat16", "logging.run_folder=unused"};
  overrides.insert(overrides.end(), keys.begin(), keys.end());
  RunConfig config = parse_config("", "schedule", overrides);
  validate(config);
  return resolved(config);
}

RunConfig scheduled(RunConfig config) {
  config.overlap.cost = "h200x8";
  config.overlap.list_schedule = true;
  return config;
}

int64_t step_ns(const RunPlan& plan) {
  const auto model = make_analytic_model(make_cluster(*find_device("h200"), 8));
  return simulate(rank_programs(plan), *model).step_ns;
}

PassRecord record_of(const RunPlan& plan, std::string_view pass) {
  const std::vector<PassRecord>& records = plan.ranks.front().passes;
  const auto found = std::ranges::find(records, pass, &PassRecord::name);
  EXPECT_NE(found, records.end()) << pass;
  return found == records.end() ? PassRecord{} : *found;
}

TEST(SchedulePlan, IsNeverSlowerAndOftenFaster) {
  int num_faster = 0;
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{
           {"parallel.ranks=4", "parallel.pipeline=4", "parallel.schedule=1f1b"},
           {"parallel.ranks=2", "parallel.pipeline=2", "parallel.schedule=interleaved",
            "parallel.virtual_stages=2"},
           {"parallel.ranks=2", "parallel.pipeline=2", "parallel.schedule=zb-h1"},
           {"parallel.ranks=4", "parallel.tensor=4", "parallel.sequence_parallel=true",
            "memory.recompute=norms"},
           {"parallel.ranks=4", "parallel.shard=parameters"}}) {
    const RunConfig config = config_with(keys);
    const RunPlan before = plan_run(resolve_run(config, 0));
    const RunPlan after = plan_run(resolve_run(scheduled(config), 0));  // verified
    SCOPED_TRACE(keys[1] + ": " + record_of(after, "list_schedule").report.summary);
    EXPECT_LE(step_ns(after), step_ns(before));
    num_faster += step_ns(after) < step_ns(before) ? 1 : 0;
    EXPECT_EQ(record_of(after, "choose_engines").report.summary, "not asked for");
  }
  EXPECT_GE(num_faster, 3);
}

TEST(SchedulePlan, FillsTheBubblesOfAPipeline) {
  const RunConfig config =
      config_with({"parallel.ranks=4", "parallel.pipeline=4", "parallel.schedule=1f1b"});
  const RunPlan before = plan_run(resolve_run(config, 0));
  const RunPlan after = plan_run(resolve_run(scheduled(config), 0));
  EXPECT_LT(static_cast<double>(step_ns(after)), 0.95 * static_cast<double>(step_ns(before)));
  EXPECT_THAT(describe_run_plan(after), AllOf(HasSubstr("list_schedule"), HasSubstr("instead of"),
                                              HasSubstr("weight gradients moved, memory ")));
}

// Ranks that represent others, in the data dimension or in their stage, also get a schedule, and so
// does a single rank that is planned alone.
TEST(SchedulePlan, TakesRanksThatStandForOthers) {
  const RunConfig config = scheduled(config_with(
      {"parallel.ranks=8", "parallel.pipeline=2", "parallel.tensor=2", "parallel.data=2"}));
  const RunPlan places = plan_run(resolve_run(config, 0), {.ranks = {0, 1, 4, 5}});
  const RunPlan alone = plan_run(resolve_run(config, 0), {.ranks = {0}});
  ASSERT_EQ(alone.ranks.size(), 1U);
  EXPECT_EQ(alone.ranks[0].programs[kTrainProgram], places.ranks[0].programs[kTrainProgram]);
  const RunPlan stages = plan_run(resolve_run(config, 0), {.one_rank_per_stage = true});
  ASSERT_EQ(stages.ranks.size(), 2U);
  EXPECT_TRUE(record_of(stages, "list_schedule").report.changed);
  for (const RunPlan* plan : {&places, &stages}) {
    EXPECT_TRUE(verify_ranks(rank_programs(*plan),
                             {.one_order_of_collectives = true, .one_order_of_messages = true})
                    .empty());
  }
}

// A device that has just what the plan needs: orders that need more are not taken.
TEST(SchedulePlan, StaysWithinTheDevice) {
  const RunConfig config =
      config_with({"parallel.ranks=4", "parallel.pipeline=4", "parallel.schedule=1f1b"});
  RunPlan plan = plan_run(resolve_run(config, 0));
  std::vector<int64_t> step_bytes;
  for (const RankPlan& rank : plan.ranks) {
    step_bytes.push_back(rank.memory.step_bytes);
  }
  DeviceSpec device = *find_device("h200");
  device.memory_bytes = 1;
  const auto model = make_analytic_model(make_cluster(device, 8));
  schedule_plan(plan, resolve_run(scheduled(config), 0), model.get());
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    EXPECT_LE(plan.ranks[i].memory.step_bytes, step_bytes[i]);
  }
}

// A search, which keeps one plan of many, has no time for the smallest arena.
TEST(SchedulePlan, PlansMemoryQuicklyWithoutVerifying) {
  const RunConfig config =
      scheduled(config_with({"parallel.ranks=4", "parallel.pipeline=4", "parallel.schedule=1f1b"}));
  const RunPlan full = plan_run(resolve_run(config, 0), {.one_rank_per_stage = true});
  const RunPlan quick =
      plan_run(resolve_run(config, 0), {.one_rank_per_stage = true, .verify = false});
  for (size_t i = 0; i < quick.ranks.size(); ++i) {
    const std::vector<Program>& programs = quick.ranks[i].programs;
    ASSERT_EQ(programs[kTrainProgram], full.ranks[i].programs[kTrainProgram]);
    const MemoryPlan expected =
        plan_memory_quickly(std::vector{&programs[kTrainProgram], &programs[kEvalProgram]});
    EXPECT_EQ(quick.ranks[i].memory.programs[kTrainProgram].offset_bytes,
              expected.programs[kTrainProgram].offset_bytes);
    EXPECT_LE(full.ranks[i].memory.step_bytes, expected.step_bytes);
  }
}

/// Tensor ranks that send as long as they compute.
RunConfig tensor_config() {
  return config_with({"parallel.ranks=8", "parallel.tensor=8", "parallel.sequence_parallel=true",
                      "memory.recompute=norms", "model.width=4096", "model.heads=32",
                      "train.sequence=8192", "train.global_batch=4"});
}

TEST(SchedulePlan, WeavesMicrobatchesInPairs) {
  const RunConfig config = tensor_config();
  const RunPlan before = plan_run(resolve_run(config, 0), {.one_rank_per_stage = true});
  const RunPlan after = plan_run(resolve_run(scheduled(config), 0), {.one_rank_per_stage = true});
  EXPECT_LT(static_cast<double>(step_ns(after)), 0.85 * static_cast<double>(step_ns(before)));
}

TEST(SchedulePlan, ChoosesEnginesByWhatIsHidden) {
  RunConfig config = tensor_config();
  config.overlap.cost = "h200x8";
  const auto step_with = [&](const char* engine, bool orders) {
    config.overlap.comm_engine = engine;
    config.overlap.list_schedule = orders;
    return step_ns(plan_run(resolve_run(config, 0), {.one_rank_per_stage = true}));
  };
  for (const bool orders : {false, true}) {
    EXPECT_LE(step_with("hidden", orders), step_with("auto", orders));
    EXPECT_LT(step_with("hidden", orders), step_with("sm", orders));
  }
  // Where tasks have an order of their own, what copies gain may be what auto gives them, too.
  EXPECT_LT(step_with("hidden", false), step_with("auto", false));
  config.overlap.list_schedule = false;
  config.overlap.comm_engine = "hidden";
  const RunPlan plan = plan_run(resolve_run(config, 0));  // of all ranks, verified
  EXPECT_THAT(record_of(plan, "choose_engines").report.summary,
              AllOf(HasSubstr("copy engines run"), HasSubstr(" collectives, memory ")));
}

TEST(SchedulePlan, NeedsCosts) {
  RunConfig config = config_with({"parallel.ranks=2"});
  config.overlap.list_schedule = true;
  EXPECT_THAT(message_of<ConfigError>([&] { plan_run(resolve_run(config, 0)); }),
              AllOf(HasSubstr("overlap.list_schedule = true"), HasSubstr("set overlap.cost")));
  config.overlap.mode = "off";
  EXPECT_THAT(message_of<ConfigError>([&] { validate(config); }),
              AllOf(HasSubstr("overlap.list_schedule = true"), HasSubstr("overlap.mode")));
  config.overlap = {.comm_engine = "hidden"};
  EXPECT_THAT(message_of<ConfigError>([&] { plan_run(resolve_run(config, 0)); }),
              AllOf(HasSubstr("overlap.comm_engine = \"hidden\""), HasSubstr("set overlap.cost")));
  config.overlap.mode = "off";
  EXPECT_THAT(message_of<ConfigError>([&] { validate(config); }),
              AllOf(HasSubstr("overlap.comm_engine = \"hidden\""), HasSubstr("overlap.mode")));
}

TEST(SchedulePlan, ASimulationHasCosts) {
  RunConfig config =
      config_with({"parallel.ranks=4", "parallel.pipeline=4", "parallel.schedule=1f1b"});
  const auto model = make_analytic_model(make_cluster(*find_device("h200"), 8));
  const int64_t before_ns = SimulatedRun(resolve_run(config, 0), *model).step_ns();
  config.overlap.list_schedule = true;
  EXPECT_LT(SimulatedRun(resolve_run(config, 0), *model).step_ns(), before_ns);
}

}  // namespace
}  // namespace braid
