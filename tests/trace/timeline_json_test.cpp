#include "trace/timeline_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "trace/timelines.h"

namespace braid {
namespace {

using Json = nlohmann::json;

TEST(TimelineJson, HasAColumnPerField) {
  Timeline timeline{"cpu", {make_rank(2)}};
  RankTimeline& rank = timeline.ranks[0];
  rank.step = 9;
  TimelineTask compute = task_at(0, 5, 20);
  compute.phase = Phase::kWgrad;
  compute.microbatch = 1;
  compute.layer = 4;
  rank.tasks = {compute, communication_at(1, 20, 50, GroupKind::kPipeline, 128)};

  const Json json = Json::parse(timeline_json(timeline));
  EXPECT_EQ(json["source"], "cpu");
  EXPECT_EQ(json["step_ns"], 50);
  const Json& columns = json["ranks"][0];
  EXPECT_EQ(columns["rank"], 2);
  EXPECT_EQ(columns["step"], 9);
  EXPECT_EQ(columns["streams"][1], (Json{{"name", "dp"}, {"kind", "comm"}}));
  EXPECT_EQ(columns["names"], Json({"op"}));
  EXPECT_EQ(columns["stream"], Json({0, 1}));
  EXPECT_EQ(columns["name"], Json({0, 0}));
  EXPECT_EQ(columns["start_ns"], Json({5, 20}));
  EXPECT_EQ(columns["duration_ns"], Json({15, 30}));
  EXPECT_EQ(columns["microbatch"], Json({1, -1}));
  EXPECT_EQ(columns["virtual_stage"], Json({-1, -1}));
  EXPECT_EQ(columns["layer"], Json({4, -1}));
  EXPECT_EQ(columns["bytes"], Json({0, 128}));
  EXPECT_EQ(json["phases"][columns["phase"][0].get<size_t>()], "wgrad");
  EXPECT_EQ(columns["group"][0], -1);
  EXPECT_EQ(json["groups"][columns["group"][1].get<size_t>()], "pipeline");
}

TEST(TimelineJson, HasTheKernelsOfTasksAndOfNone) {
  Timeline timeline{"cuda, CUPTI", {make_rank(0)}};
  RankTimeline& rank = timeline.ranks[0];
  rank.tasks = {task_at(0, 5, 20)};
  rank.kernel_names = {"fill", "rows<4>"};
  rank.kernels = {{TimelineKernel::kNoTask, 0, 0, 3}, {0, 1, 5, 20}};
  rank.remark = "2 records lost by the profiler";
  const Json columns = Json::parse(timeline_json(timeline))["ranks"][0];
  EXPECT_EQ(columns["kernel_names"], Json({"fill", "rows<4>"}));
  EXPECT_EQ(
      columns["kernels"],
      (Json{{"task", {-1, 0}}, {"name", {0, 1}}, {"start_ns", {0, 5}}, {"duration_ns", {3, 15}}}));
  EXPECT_EQ(columns["remark"], rank.remark);
}

TEST(TimelineJson, CannotEndTheScriptThatHoldsIt) {
  Timeline timeline{"cpu", {make_rank(0)}};
  timeline.ranks[0].names[0] = "</script><!--";
  const std::string text = timeline_json(timeline);
  EXPECT_EQ(text.find('<'), std::string::npos);
  EXPECT_EQ(Json::parse(text)["ranks"][0]["names"][0], "</script><!--");
}

}  // namespace
}  // namespace braid
