#include "report/report_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "report/sample_report.h"

namespace braid {
namespace {

using Json = nlohmann::json;

TEST(ReportData, StepsAreColumnsOfSixDigits) {
  ReportInput input;
  input.steps = {{.step = 1, .loss = 1.23456789, .step_ms = 2},
                 {.step = 2, .loss = std::numeric_limits<double>::quiet_NaN(), .step_ms = 3}};
  input.evaluations = {{0, 9.25}, {2, 8.5}};
  const Json json = Json::parse(report_data_json(input));
  EXPECT_EQ(json["steps"]["step"], Json({1, 2}));
  EXPECT_EQ(json["steps"]["loss"], Json({1.23457, nullptr}));
  EXPECT_EQ(json["steps"]["step_ms"], Json({2, 3}));
  EXPECT_EQ(json["evaluations"]["step"], Json({0, 2}));
  EXPECT_EQ(json["evaluations"]["loss"], Json({9.25, 8.5}));
}

TEST(ReportData, UnknownEntropyIsNull) {
  ReportInput input;
  EXPECT_EQ(Json::parse(report_data_json(input))["unigram_entropy"], nullptr);
  input.unigram_entropy = 6.5;
  EXPECT_EQ(Json::parse(report_data_json(input))["unigram_entropy"], 6.5);
}

TEST(ReportData, PassesSayWhatTheyDid) {
  ReportInput input;
  input.passes = {{"assign_streams", false, 1'500'000, {true, 12, "moved 12"}},
                  {"other", true, 0, {false, 0, "disabled"}}};
  const Json json = Json::parse(report_data_json(input))["passes"];
  EXPECT_EQ(json[0], (Json{{"name", "assign_streams"},
                           {"ms", 1.5},
                           {"skipped", false},
                           {"changed", true},
                           {"num_changes", 12},
                           {"summary", "moved 12"}}));
  EXPECT_EQ(json[1]["skipped"], true);
}

TEST(ReportData, SimulationIsWhatItWasGiven) {
  ReportInput input = sample_report(200, 3);
  EXPECT_EQ(Json::parse(report_data_json(input))["simulation"], nullptr);
  simulate_sample(input);
  input.memory_rank = 8;
  const Json data = Json::parse(report_data_json(input));
  EXPECT_EQ(data["simulation"], Json::parse(input.simulation));
  EXPECT_EQ(data["simulation"]["ranks"], 1024);
  EXPECT_EQ(data["memory"]["rank"], 8);
  EXPECT_TRUE(data["steps"]["step"].empty());
}

TEST(ReportData, IdleTimeIsSplitByPhaseOfThePipeline) {
  const Json data = Json::parse(report_data_json(sample_report(400, 1)));
  for (const Json& rank : data["ranks"]) {
    const Json& idle = rank["bubble"];
    EXPECT_EQ(idle["warmup_ns"].get<int64_t>() + idle["steady_ns"].get<int64_t>() +
                  idle["cooldown_ns"].get<int64_t>(),
              rank["bubble_ns"]);
    EXPECT_GT(idle["warmup_ns"], 0);
  }
}

TEST(ReportData, MemoryIsThatOfTheProgramThatNeedsMost) {
  ReportInput input;
  input.memory.persistent_bytes = 512;
  input.memory.step_bytes = 1024;
  input.memory.persistent_by_role = {{BufferRole::kParam, 512}};
  StepPlan train;
  train.arena_bytes = 1024;
  train.max_live_bytes = 1000;
  train.peak_by_role = {{BufferRole::kActivation, 900}, {BufferRole::kScratch, 100}};
  StepPlan evaluation;
  evaluation.arena_bytes = 256;
  evaluation.peak_by_role = {{BufferRole::kActivation, 256}};
  input.memory.programs = {train, evaluation};

  const Json memory = Json::parse(report_data_json(input))["memory"];
  EXPECT_EQ(memory["max_live_bytes"], 1000);
  EXPECT_EQ(memory["classes"],
            Json::parse(R"([{"name": "param", "persistent_bytes": 512, "step_bytes": 0},
                      {"name": "activation", "persistent_bytes": 0, "step_bytes": 900},
                      {"name": "scratch", "persistent_bytes": 0, "step_bytes": 100}])"));
}

TEST(ReportData, MemoryHasWhatUnitsTakeInPools) {
  ReportInput input;
  EXPECT_EQ(Json::parse(report_data_json(input))["memory"]["units"], Json::array());
  input.unit_memory = {{"gathered weights",
                        {.planned_bytes = 300,
                         .live_bytes = 200,
                         .max_pool_bytes = 400,
                         .max_pool_copies = 2,
                         .kind_pools_bytes = 500,
                         .own_bytes = 900}}};
  EXPECT_EQ(Json::parse(report_data_json(input))["memory"]["units"],
            Json::parse(R"([{"what": "gathered weights", "planned_bytes": 300, "live_bytes": 200,
                      "max_pool_bytes": 400, "kind_pools_bytes": 500, "own_bytes": 900}])"));
}

TEST(ReportData, RanksSayWhereTheirStepWent) {
  ReportInput input;
  RankTimeline rank;
  rank.rank = 3;
  rank.streams = {{"compute", StreamKind::kCompute, 0}, {"dp", StreamKind::kComm, 0}};
  rank.names = {"op"};
  rank.tasks = {{.stream = 0, .start_ns = 0, .end_ns = 60},
                {.stream = 1,
                 .start_ns = 40,
                 .end_ns = 100,
                 .bytes = 8,
                 .group = GroupKind::kData,
                 .communication = true}};
  input.timeline.ranks = {rank};
  const Json times = Json::parse(report_data_json(input))["ranks"][0];
  EXPECT_EQ(times["rank"], 3);
  EXPECT_EQ(times["step_ns"], 100);
  EXPECT_EQ(times["compute_ns"], 60);
  EXPECT_EQ(times["communication"]["exposed_ns"], 40);
  EXPECT_EQ(times["by_group"], Json::parse(R"([{"name": "data", "num_tasks": 1, "bytes": 8,
                                                "total_ns": 60, "exposed_ns": 40,
                                                "exposed_wait_ns": 0}])"));
}

TEST(ReportData, RanksSayWhichOpsTookTheirTimeAndWhenTheyWereIdle) {
  ReportInput input;
  RankTimeline rank;
  rank.streams = {{"compute", StreamKind::kCompute, 0}};
  rank.names = {"linear qkv", "swiglu mlp"};
  rank.ops = {{"linear", 2000, 10}, {"swiglu", 1, 30}};
  rank.device = {.name = "a device", .flops_per_s = 1e11, .bytes_per_s = 1e10};
  rank.tasks = {{.name = 0, .start_ns = 0, .end_ns = 60, .op = 0},
                {.name = 1, .start_ns = 70, .end_ns = 90, .op = 1}};
  rank.kernel_names = {"k"};
  rank.kernels = {{0, 0, 0, 40}, {1, 0, 70, 90}, {TimelineKernel::kNoTask, 0, 90, 95}};
  input.timeline.ranks = {rank};
  const Json times = Json::parse(report_data_json(input))["ranks"][0];
  EXPECT_EQ(times["device"],
            (Json{{"name", "a device"}, {"flops_per_s", 1e11}, {"bytes_per_s", 1e10}}));
  EXPECT_EQ(times["ops"], Json::parse(R"([
      {"op": "linear", "kind": "matrix products", "num_tasks": 1, "busy_ns": 40, "flops": 2000.0,
       "bytes": 10.0, "least_ns": 20.0},
      {"op": "swiglu", "kind": "elementwise", "num_tasks": 1, "busy_ns": 20, "flops": 1.0,
       "bytes": 30.0, "least_ns": 3.0}])"));
  EXPECT_EQ(times["no_task_ns"], 5);
  EXPECT_EQ(times["idle"], Json::parse(R"({"total_ns": 30, "num_gaps": 1, "longest": [
      {"start_ns": 40, "duration_ns": 30, "after": "linear qkv", "before": "swiglu mlp"}]})"));
}

TEST(ReportData, GapsAtTheEndsOfTheStepHaveATaskOnOneSideOnly) {
  ReportInput input;
  RankTimeline rank;
  rank.streams = {{"compute", StreamKind::kCompute, 0}};
  rank.names = {"op"};
  rank.tasks = {{.start_ns = 10, .end_ns = 60}};
  input.timeline.ranks = {rank, rank};
  input.timeline.ranks[1].tasks[0].end_ns = 80;
  const Json gaps = Json::parse(report_data_json(input))["ranks"][0]["idle"]["longest"];
  EXPECT_EQ(gaps, Json::parse(R"([
      {"start_ns": 60, "duration_ns": 20, "after": "op", "before": null},
      {"start_ns": 0, "duration_ns": 10, "after": null, "before": "op"}])"));
  input.timeline.ranks[0].kernels = {{TimelineKernel::kNoTask, 0, 0, 4}, {0, 0, 10, 60}};
  const Json gap = Json::parse(report_data_json(input))["ranks"][0]["idle"]["longest"][1];
  EXPECT_EQ(gap, Json::parse(R"({"start_ns": 4, "duration_ns": 6, "after": "work of no task",
                                 "before": "op"})"));
}

TEST(ReportData, TextsCannotEndTheScriptThatHoldsThem) {
  ReportInput input;
  input.title = "</script><!--";
  input.config_toml = "\xff</SCRIPT>\n\"";
  const std::string text = report_data_json(input);
  EXPECT_EQ(text.find('<'), std::string::npos);
  EXPECT_EQ(Json::parse(text)["title"], input.title);
  EXPECT_EQ(Json::parse(text)["config"], "\xef\xbf\xbd</SCRIPT>\n\"");
}

TEST(ReportData, EscapesWhatMeansSomethingInHtml) {
  EXPECT_EQ(escape_html("a<b>\"c\" 'd' &lt;"), "a&lt;b&gt;&quot;c&quot; &#39;d&#39; &amp;lt;");
}

}  // namespace
}  // namespace braid
