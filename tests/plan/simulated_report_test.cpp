#include "plan/simulated_report.h"

#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "config/validate.h"
#include "plan/describe_simulation.h"
#include "plan/run_spec.h"
#include "report/run_file.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

/// 4 stages of 4 ranks, two of which share each tensor.
RunConfig small_pipeline() {
  RunConfig config;
  config.model.layers = 4;
  config.model.width = 64;
  config.model.heads = 4;
  config.model.vocabulary = 256;
  config.train.sequence = 64;
  config.train.microbatch = 1;
  config.train.global_batch = 16;
  config.parallel.ranks = 16;
  config.parallel.tensor = 2;
  config.parallel.sequence_parallel = true;
  config.parallel.pipeline = 4;
  config.data.train = "unused";
  config.logging.run_folder = "unused";
  validate(config);
  return resolved(config);
}

const CostModel& small_cluster() {
  static const std::unique_ptr<CostModel> model = make_analytic_model(parse_cluster("h200x16"));
  return *model;
}

/// Planned once for all tests.
const SimulatedRun& small_run() {
  static const SimulatedRun run(resolve_run(small_pipeline(), 0), small_cluster());
  return run;
}

class SimulatedReport : public testing::Test {
 protected:
  const SimulatedRun& run_ = small_run();
};

TEST_F(SimulatedReport, ShowsTheFirstRankOfEachStageOrOfAsManyAsFit) {
  EXPECT_THAT(ranks_to_show(run_), ElementsAre(0, 4, 8, 12));
  size_t most = 0;
  for (const RankPlan& rank : run_.plan().ranks) {
    most = std::max(most, rank.programs[kTrainProgram].tasks.size());
  }
  EXPECT_THAT(ranks_to_show(run_, 3 * most), ElementsAre(0, 4, 12));
  EXPECT_THAT(ranks_to_show(run_, 2 * most), ElementsAre(0, 12));
  EXPECT_THAT(ranks_to_show(run_, 1), ElementsAre(0, 12));
}

TEST_F(SimulatedReport, HoldsAllOfTheRunAndOnlyTheRanksThatWereAskedFor) {
  const std::vector<int> ranks{5, 9};
  const Json run = Json::parse(run_report(simulated_report(run_, ranks, "predicted")).json);
  const Json& data = run["data"];
  EXPECT_EQ(data["title"], "predicted");
  EXPECT_EQ(data["simulation"], Json::parse(simulation_json(run_)));
  EXPECT_EQ(data["simulation"]["stages"].size(), 4u);
  EXPECT_EQ(data["layout"]["rows"].size(), 4u);
  EXPECT_THAT(data["config"].get<std::string>(), HasSubstr("pipeline = 4"));
  EXPECT_THAT(run["schedule"].get<std::string>(), HasSubstr("Jobs of 4 pipeline ranks"));
  ASSERT_EQ(run["timeline"]["ranks"].size(), 2u);
  for (size_t i = 0; i < ranks.size(); ++i) {
    EXPECT_EQ(run["timeline"]["ranks"][i]["rank"], ranks[i]);
    EXPECT_EQ(data["ranks"][i]["rank"], ranks[i]);
    const Json& memory = data["memory_over_time"][i];
    EXPECT_EQ(memory["rank"], ranks[i]);
    EXPECT_GT(memory["high_bytes"], 0);
    EXPECT_LE(memory["high_bytes"], memory["step_bytes"]);
  }
  EXPECT_LE(data["ranks"][0]["step_ns"], run_.result().step_ns);  // others may end later
}

TEST_F(SimulatedReport, PlansMemoryOfTheRankThatNeedsMost) {
  const std::vector<int> ranks{0};
  const ReportInput report = simulated_report(run_, ranks, "");
  int64_t most = 0;
  for (const StageMemory& stage : run_.memory_by_stage()) {
    most = std::max(most, stage.peak_bytes);
  }
  EXPECT_EQ(report.memory.peak_bytes(), most);
  const Json stages = Json::parse(report.simulation)["stages"];
  bool found = false;
  for (const Json& stage : stages) {
    found |= stage["peak_rank"] == report.memory_rank && stage["peak_bytes"] == most;
  }
  EXPECT_TRUE(found);
}

/// What a page's bars show of each stage is all of its step.
TEST_F(SimulatedReport, PartsOfEachStageAddUpToTheStep) {
  const Json simulation = Json::parse(simulation_json(run_));
  for (const Json& stage : simulation["stages"]) {
    int64_t sum = 0;
    for (const char* part :
         {"compute_ns", "exposed_ns", "copy_ns", "warmup_ns", "steady_ns", "cooldown_ns"}) {
      sum += stage[part].get<int64_t>();
    }
    EXPECT_EQ(sum, run_.result().step_ns);
    EXPECT_TRUE(stage["communication"].contains("tensor"));
  }
}

TEST_F(SimulatedReport, IsAFolderThatCanBeReadAgain) {
  const TempFolder folder;
  const std::string path = folder / "a/sim";
  const std::vector<int> ranks{0, 12};
  EXPECT_EQ(write_simulated_report(path, run_, ranks), path + "/report.html");
  const RunReport read = load_run_report(path);
  EXPECT_EQ(read.title, "sim");
  EXPECT_EQ(Json::parse(read.json),
            Json::parse(run_report(simulated_report(run_, ranks, "sim")).json));
  write_simulated_report(path + "/", run_, ranks);  // again, over the first
  EXPECT_THAT(
      message_of<ConfigError>([&] { write_simulated_report(path, run_, std::vector<int>{16}); }),
      HasSubstr("the ranks are 0 to 15"));
}

TEST_F(SimulatedReport, ExplainsTheCommunicationOfItsRanks) {
  const std::string text = describe_overlap(run_, std::vector<int>{0, 12});
  EXPECT_THAT(text, testing::StartsWith("hidden    or why not; sums over ranks 0, 12\noverlap   "));
  EXPECT_THAT(text, HasSubstr("overlap   tensor: "));
  EXPECT_THAT(text, HasSubstr("overlap   pipeline: "));
  EXPECT_THAT(text, testing::ContainsRegex(
                        "\nplace     [a-z_]+ [a-z0-9_.]+: .* exposed of .* in [0-9]+ calls, "));
  RunConfig alone = small_pipeline();
  alone.parallel = {};
  validate(alone);
  const SimulatedRun one(resolve_run(resolved(alone), 0), small_cluster());
  EXPECT_EQ(describe_overlap(one, std::vector<int>{0}), "");
}

}  // namespace
}  // namespace braid
