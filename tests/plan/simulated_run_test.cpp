#include "plan/simulated_run.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "base/expect_error.h"
#include "config/validate.h"
#include "plan/describe_simulation.h"
#include "sim/analytic_model.h"
#include "sim/step_clock.h"
#include "support/emulated_layouts.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

RunConfig valid(const RunConfig& config) {
  validate(config);
  return resolved(config);
}

/// Times of all ranks with a program of its own each.
std::vector<RankTimeline> every_rank(const RunConfig& config, const CostModel& model) {
  const RunPlan plan = plan_run(resolve_run(config, 0));
  RankPrograms ranks;
  for (const RankPlan& rank : plan.ranks) {
    ranks.program_of.push_back(static_cast<uint32_t>(ranks.programs.size()));
    ranks.programs.push_back(&rank.programs[kTrainProgram]);
  }
  const SimResult result = simulate_at_clock(MatchedPrograms(ranks, model), model).result;
  std::vector<RankTimeline> timelines;
  for (int rank = 0; rank < ranks.num_ranks(); ++rank) {
    timelines.push_back(simulated_timeline(ranks, result, rank));
  }
  return timelines;
}

std::string describe(const RankTimeline& rank, const TimelineTask& task) {
  return fmt::format("{} mb={} layer={} {} to {} ns", rank.names[task.name], task.microbatch,
                     task.layer, task.start_ns, task.end_ns);
}

/// The first task in time that differs; empty if there is none.
std::string first_difference(const RankTimeline& a, const RankTimeline& b) {
  if (a.tasks.size() != b.tasks.size()) {
    return fmt::format("{} and {} tasks", a.tasks.size(), b.tasks.size());
  }
  std::string text;
  int64_t first_ns = INT64_MAX;
  for (size_t i = 0; i < a.tasks.size(); ++i) {
    if (a.tasks[i] != b.tasks[i] && a.tasks[i].end_ns < first_ns) {
      first_ns = a.tasks[i].end_ns;
      text = describe(a, a.tasks[i]) + ", and " + describe(b, b.tasks[i]);
    }
  }
  return text;
}

// Layouts of 16 ranks on two nodes: some groups lie on one node, some on both.
TEST(SimulatedRun, IsThatOfAllRanks) {
  std::mt19937 random(3);
  const auto model = make_analytic_model(parse_cluster("h100x16"));
  for (int i = 0; i < (kSanitized ? 3 : 12); ++i) {
    RunConfig config = small_planned_run();
    ParallelConfig& parallel = config.parallel;
    parallel.ranks = 16;
    parallel.tensor = 1 << (random() % 3);
    parallel.sequence_parallel = parallel.tensor > 1;
    parallel.context = 1 << (random() % 2);
    parallel.pipeline = 1 << (random() % 2);
    config = valid(config);
    const SimulatedRun run(resolve_run(config, 0), *model);
    const std::vector<RankTimeline> all = every_rank(config, *model);
    for (int rank = 0; rank < 16; ++rank) {
      const std::vector<int> one{rank};
      ASSERT_EQ(first_difference(run.timeline(one).ranks.front(), all[static_cast<size_t>(rank)]),
                "")
          << "tensor " << parallel.tensor << " context " << parallel.context << " pipeline "
          << parallel.pipeline << " rank " << rank;
    }
  }
}

// The optimizer of a shard has a few tasks more or less than that of another, depending on which
// parameters it holds: microseconds of a step of milliseconds.
TEST(SimulatedRun, OfShardsIsNearlyThatOfAllRanks) {
  RunConfig config = small_planned_run();
  config.parallel.ranks = 16;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  config.parallel.shard = "optimizer";
  config = valid(config);
  const auto model = make_analytic_model(parse_cluster("h100x16"));
  const SimulatedRun run(resolve_run(config, 0), *model);
  const Timeline all{.source = "sim", .ranks = every_rank(config, *model)};
  const auto step_ns = static_cast<double>(step_time_ns(all));
  EXPECT_NEAR(static_cast<double>(run.result().step_ns), step_ns, 0.02 * step_ns);
}

TEST(SimulatedRun, TimesOfEachRankAddUpToTheStep) {
  RunConfig config = small_planned_run();
  config.parallel.ranks = 8;
  config.parallel.pipeline = 2;
  config.parallel.tensor = 2;
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  const SimulatedRun run(resolve_run(valid(config), 0), *model);
  int num_ranks = 0;
  for (const SimulatedRank& rank : run.ranks()) {
    num_ranks += rank.num_ranks;
    EXPECT_EQ(rank.times.compute_ns + rank.times.communication.exposed_ns + rank.times.copy_ns +
                  rank.times.bubble_ns,
              run.result().step_ns);
    EXPECT_EQ(rank.idle.total_ns(), rank.times.bubble_ns);
  }
  EXPECT_EQ(num_ranks, 8);
  EXPECT_EQ(run.step_ns(), run.result().step_ns + model->step_overhead_ns());
  ASSERT_EQ(run.memory_by_stage().size(), 2u);
  EXPECT_GT(run.memory_by_stage()[0].peak_bytes, 0);
  EXPECT_GT(run.memory_by_stage()[0].needed_bytes, run.memory_by_stage()[0].peak_bytes);
}

TEST(SimulatedRun, MemoryThatNoDeviceHasIsNamed) {
  RunConfig config = small_planned_run();
  config.model = {.preset = "llama-8b"};
  const auto model = make_analytic_model(parse_cluster("h100"));
  EXPECT_THAT(describe_simulation(SimulatedRun(resolve_run(valid(config), 0), *model)),
              HasSubstr("memory    does not fit: "));
}

RunConfig fp8_run(const char* recipe) {
  RunConfig config = small_planned_run();
  config.model = {.preset = "llama-1b"};
  config.train.sequence = 128;
  config.train.dtype = "bfloat16";
  config.train.fp8 = recipe;
  return valid(config);
}

TEST(SimulatedRun, SaysWhatFp8ProductsArePricedAs) {
  const auto described = [](const char* recipe, const char* cluster) {
    const auto model = make_analytic_model(parse_cluster(cluster));
    return describe_simulation(SimulatedRun(resolve_run(fp8_run(recipe), 0), *model));
  };
  EXPECT_THAT(described("mxfp8", "b200"), HasSubstr("fp8       scaled_linear as MXFP8: "));
  EXPECT_THAT(described("block", "b200"),
              HasSubstr("scaled_linear_wgrad as MXFP8 (four E8M0 bytes for each f32 scale): "));
  EXPECT_THAT(described("mxfp8", "h200"),
              HasSubstr("scaled_linear_dgrad as bf16, after conversion of both factors: "));
  EXPECT_THAT(described("off", "b200"), testing::Not(HasSubstr("fp8 ")));
}

TEST(SimulatedRun, SaysWhatProductsOfFp8ExpertsArePricedAs) {
  RunConfig config = fp8_run("block");
  config.model = {.preset = "olmoe-1b-7b"};
  config.train.fp8_experts = true;
  const auto described = [&](const char* cluster) {
    const auto model = make_analytic_model(parse_cluster(cluster));
    return describe_simulation(SimulatedRun(resolve_run(valid(config), 0), *model));
  };
  EXPECT_THAT(described("h100"),
              HasSubstr("scaled_grouped_linear_dgrad as FP8 with scales of blocks: "));
  EXPECT_THAT(described("b200"), HasSubstr("scaled_grouped_linear_wgrad as MXFP8 (four E8M0 bytes "
                                           "for each f32 scale): "));
  config.train.fp8_experts = false;
  EXPECT_THAT(described("h100"), testing::Not(HasSubstr("scaled_grouped_linear")));
}

TEST(SimulatedRun, SaysTheSameOfFp8ProductsInJson) {
  const auto json = [](const char* recipe) {
    const auto model = make_analytic_model(parse_cluster("b200"));
    return nlohmann::json::parse(
        simulation_json(SimulatedRun(resolve_run(fp8_run(recipe), 0), *model)));
  };
  const nlohmann::json list = json("mxfp8")["fp8"];
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0]["op"], "scaled_linear");
  EXPECT_EQ(list[0]["as"], "MXFP8");
  EXPECT_GT(list[0]["tasks"], 0);
  EXPECT_GT(list[0]["ns"], 0);
  EXPECT_FALSE(json("off").contains("fp8"));
}

/// A task of rank 0 as the simulator runs it.
struct TimedTask {
  std::string name;
  std::string stream;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

/// The tasks of that op and layer 0 at sites of that ending, by start time within a stream.
std::vector<TimedTask> tasks_of(const SimulatedRun& run, const std::string& op,
                                const std::string& site_ending) {
  const Timeline timeline = run.timeline(std::array{0});
  const RankTimeline& rank = timeline.ranks[0];
  std::vector<TimedTask> tasks;
  for (const TimelineTask& task : rank.tasks) {
    const std::string& name = rank.names[task.name];
    if (task.layer == 0 && name.starts_with(op + " ") && name.ends_with(site_ending)) {
      tasks.push_back({name, rank.streams[task.stream].name, task.start_ns, task.end_ns});
    }
  }
  return tasks;
}

RunConfig gathered_copies_run() {
  RunConfig config = fp8_run("block");
  config.model = {.preset = "llama-8b"};
  config.model.layers = 2;
  config.train.sequence = 8192;
  config.train.global_batch = config.train.microbatch;
  config.parallel.ranks = 8;
  config.parallel.tensor = 8;
  config.parallel.sequence_parallel = true;
  return config;
}

/// The share of these tasks in which a task of another stream runs that is not communication.
double hidden_share(const SimulatedRun& run, const std::vector<TimedTask>& calls) {
  const Timeline timeline = run.timeline(std::array{0});
  int64_t hidden_ns = 0;
  int64_t all_ns = 0;
  for (const TimedTask& call : calls) {
    all_ns += call.end_ns - call.start_ns;
    for (const TimelineTask& task : timeline.ranks[0].tasks) {
      const int64_t both_ns =
          std::min(call.end_ns, task.end_ns) - std::max(call.start_ns, task.start_ns);
      hidden_ns += task.communication ? 0 : std::max<int64_t>(0, both_ns);
    }
  }
  return static_cast<double>(hidden_ns) / static_cast<double>(all_ns);
}

// Of all four matrices of a layer.
TEST(SimulatedRun, HidesColumnsOfFp8CopiesUnderCompute) {
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  const SimulatedRun run(resolve_run(valid(gathered_copies_run()), 0), *model);
  const auto columns = tasks_of(run, "all_gather", ".column");
  ASSERT_EQ(columns.size(), 4u);
  EXPECT_GE(hidden_share(run, columns), 0.9);
  for (const TimedTask& gather : columns) {
    EXPECT_EQ(gather.stream, "comm.tensor");
  }
  const auto dgrads = tasks_of(run, "scaled_linear_dgrad", "mlp.fc2");
  const auto of_fc2 = tasks_of(run, "all_gather", "fc2.sum.column");
  ASSERT_EQ(dgrads.size(), 1u);
  EXPECT_NE(dgrads[0].stream, "comm.tensor");
  EXPECT_LT(of_fc2[0].start_ns, dgrads[0].end_ns);
}

// Behind the last block that the ring brings, and so with the piece that reads it. Scales come
// first.
TEST(SimulatedRun, ColumnsOfFp8CopiesCrossBesideTheLastPieceOfADgrad) {
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  RunConfig config = gathered_copies_run();
  config.overlap.mode = "manual";
  config.overlap.tp_comm_overlap = true;
  const SimulatedRun run(resolve_run(valid(config), 0), *model);
  const auto pieces = tasks_of(run, "scaled_linear_dgrad", "mlp.fc2");
  const auto scales = tasks_of(run, "all_gather", "fc2.sum.column_scales");
  ASSERT_EQ(pieces.size(), 8u);
  ASSERT_EQ(scales.size(), 1u);
  EXPECT_LE(scales[0].start_ns, pieces.back().start_ns);
  EXPECT_NE(scales[0].stream, pieces.back().stream);
}

TEST(ScaledToRanks, KeepsMicrobatchesAndModelDimensions) {
  RunConfig config = small_planned_run();
  config.parallel.ranks = 4;
  config.parallel.tensor = 2;
  const RunConfig scaled = scaled_to_ranks(valid(config), 32);
  EXPECT_EQ(scaled.parallel.ranks, 32);
  EXPECT_EQ(scaled.parallel.data, 16);
  EXPECT_EQ(scaled.parallel.tensor, 2);
  EXPECT_EQ(scaled.train.global_batch, 128);
  EXPECT_EQ(num_microbatches(scaled), num_microbatches(valid(config)));
  EXPECT_EQ(scaled_to_ranks(scaled, 4).train.global_batch, 16);
  EXPECT_THAT(message_of<ConfigError>([&] { scaled_to_ranks(scaled, 7); }),
              HasSubstr("the nearest are 6 and 8"));
}

}  // namespace
}  // namespace braid
