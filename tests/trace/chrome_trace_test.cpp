#include "trace/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "trace/timelines.h"

namespace braid {
namespace {

using Json = nlohmann::json;

Json events_of(std::span<const Timeline> steps) {
  return Json::parse(chrome_trace_json(steps)).at("traceEvents");
}

Timeline small_timeline(int64_t step) {
  Timeline timeline{"cpu", {make_rank(0)}};
  RankTimeline& rank = timeline.ranks[0];
  rank.step = step;
  rank.names = {"linear \"qkv\"", "all_reduce grads"};
  TimelineTask compute = task_at(0, 0, 1500);
  compute.microbatch = 0;
  compute.layer = 3;
  TimelineTask reduce = communication_at(1, 1005, 2000, GroupKind::kData, 4096);
  reduce.name = 1;
  rank.tasks = {compute, reduce};
  return timeline;
}

TEST(ChromeTrace, IsThisTextForASmallStep) {
  const Timeline steps[] = {small_timeline(7)};
  EXPECT_EQ(chrome_trace_json(steps),
            R"({"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","name":"process_name","pid":1,"args":{"name":"rank 0"}},
{"ph":"M","name":"process_sort_index","pid":1,"args":{"sort_index":0}},
{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"compute"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":1,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"dp"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":2,"args":{"sort_index":2}},
{"ph":"M","name":"thread_name","pid":1,"tid":3,"args":{"name":"offload"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":3,"args":{"sort_index":3}},
{"ph":"X","name":"linear \"qkv\"","cat":"forward","pid":1,"tid":1,"ts":0.000,"dur":1.500,"args":{"step":7,"microbatch":0,"layer":3,"phase":"forward"}},
{"ph":"X","name":"all_reduce grads","cat":"communication","pid":1,"tid":2,"ts":1.005,"dur":0.995,"args":{"step":7,"phase":"comm","bytes":4096,"group":"data"}}
]}
)");
}

TEST(ChromeTrace, NamesTheKernelsOfTasksAndShowsWorkOfNoTask) {
  Timeline timeline = small_timeline(4);
  RankTimeline& rank = timeline.ranks[0];
  rank.kernel_names = {"rows<4>", "fill \"x\""};
  const uint32_t none = TimelineKernel::kNoTask;
  rank.kernels = {{0, 0, 0, 700},
                  {none, 1, 100, 400},
                  {none, 1, 200, 300},
                  {none, 1, 350, 500},
                  {0, 1, 800, 1500}};
  std::map<std::string, std::vector<Json>> kernels;
  std::vector<std::pair<double, double>> foreign;
  for (const Json& event : events_of({&timeline, 1})) {
    if (event["ph"] != "X") {
      continue;
    }
    if (event["cat"] == "no task") {
      EXPECT_EQ(event["name"], "fill \"x\"");
      EXPECT_EQ(event["tid"], 4);
      foreign.emplace_back(event["ts"].get<double>(), event["dur"].get<double>());
    } else {
      kernels[event["name"].get<std::string>()].push_back(event["args"].value("kernels", Json()));
    }
  }
  EXPECT_EQ(kernels["linear \"qkv\""], std::vector<Json>({Json({"rows<4>", "fill \"x\""})}));
  EXPECT_EQ(kernels["all_reduce grads"], std::vector<Json>({Json()}));
  // One row: what overlaps is cut.
  EXPECT_THAT(foreign, ::testing::ElementsAre(std::pair(0.1, 0.3), std::pair(0.4, 0.0),
                                              std::pair(0.4, 0.1)));
}

/// A message of the sequence "0 to 1" from 100 to 300 at its sender, and to 450 at its receiver.
Timeline message_timeline() {
  Timeline timeline{"cpu", {make_rank(0), make_rank(1)}};
  for (RankTimeline& rank : timeline.ranks) {
    rank.sequences = {{.name = "0 to 1", .ranks = {0, 1}, .messages = true}};
    TimelineTask task =
        communication_at(1, 100, rank.rank == 0 ? 300 : 450, GroupKind::kPipeline, 8);
    task.sequence = 0;
    task.call = 0;
    rank.tasks = {task};
  }
  return timeline;
}

TEST(ChromeTrace, HasAnArrowFromTheStartOfASendToTheEndOfItsReceive) {
  const Timeline steps[] = {message_timeline(), message_timeline()};
  std::vector<Json> arrows;
  for (const Json& event : events_of(steps)) {
    if (event.at("ph") == "s" || event.at("ph") == "f") {
      arrows.push_back(event);
    }
  }
  ASSERT_EQ(arrows.size(), 4u);
  EXPECT_EQ(arrows[0].at("ph"), "s");
  EXPECT_EQ(arrows[0].at("pid"), 1);
  EXPECT_EQ(arrows[0].at("ts"), 0.1);
  EXPECT_EQ(arrows[1].at("ph"), "f");
  EXPECT_EQ(arrows[1].at("pid"), 2);
  EXPECT_EQ(arrows[1].at("ts"), 0.45);
  EXPECT_EQ(arrows[0].at("id"), arrows[1].at("id"));
  EXPECT_NE(arrows[0].at("id"), arrows[2].at("id"));
}

TEST(ChromeTrace, HasNoArrowWithoutTheOtherRank) {
  Timeline timeline = message_timeline();
  timeline.ranks.pop_back();
  EXPECT_EQ(chrome_trace_json(std::vector{timeline}).find("\"ph\":\"s\""), std::string::npos);
}

TEST(ChromeTrace, ShowsCountersInTheirStep) {
  const Timeline steps[] = {small_timeline(1), small_timeline(2)};
  const TraceCounter counter{
      .step = 1, .rank = 0, .name = "bytes", .time_ns = {0, 500}, .values = {7, 9}};
  const Json document = Json::parse(chrome_trace_json(steps, {&counter, 1}));
  std::vector<Json> events;
  for (const Json& event : document.at("traceEvents")) {
    if (event.at("ph") == "C") {
      events.push_back(event);
    }
  }
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].at("ts"), 2.0);  // the first step takes 2 us
  EXPECT_EQ(events[1].at("ts"), 2.5);
  EXPECT_EQ(events[1].at("args").at("value"), 9);
  EXPECT_EQ(events[1].at("pid"), 1);
}

TEST(ChromeTrace, RefusesKernelsOfTasksThatDoNotExist) {
  Timeline timeline = small_timeline(0);
  timeline.ranks[0].kernel_names = {"k"};
  timeline.ranks[0].kernels = {{2, 0, 0, 1}};
  EXPECT_THAT(message_of<InternalError>([&] {
                chrome_trace_json({&timeline, 1});
              }),
              ::testing::HasSubstr("kernel 0 of task 2 does not exist"));
}

TEST(ChromeTrace, PutsStepsOneAfterTheOther) {
  const Timeline steps[] = {small_timeline(0), small_timeline(1)};
  std::vector<double> starts;
  for (const Json& event : events_of(steps)) {
    if (event["ph"] == "X") {
      starts.push_back(event["ts"].get<double>());
    }
  }
  EXPECT_THAT(starts, ::testing::ElementsAre(0.0, 1.005, 2.0, 3.005));
}

// Perfetto drops events of a row that neither nest nor follow each other.
TEST(ChromeTrace, EventsOfARowNeverOverlapAfterRounding) {
  std::mt19937 random(5);
  Timeline timeline{"cpu", {make_rank(0), make_rank(1)}};
  for (RankTimeline& rank : timeline.ranks) {
    for (uint32_t stream = 0; stream < 2; ++stream) {
      int64_t at = 1'000'000'000'000;  // long after the start, where doubles are coarse
      for (int i = 0; i < 500; ++i) {
        const int64_t start = at + static_cast<int64_t>(random() % 3);
        at = start + static_cast<int64_t>(random() % 2000);
        rank.tasks.push_back(task_at(stream, start, at));
      }
    }
  }
  std::map<std::pair<int, int>, int64_t> end_ns;
  size_t num_events = 0;
  for (const Json& event : events_of({&timeline, 1})) {
    if (event["ph"] == "X") {
      const auto start = std::llround(event["ts"].get<double>() * 1000);
      int64_t& busy_until = end_ns[{event["pid"].get<int>(), event["tid"].get<int>()}];
      EXPECT_GE(start, busy_until);
      busy_until = start + std::llround(event["dur"].get<double>() * 1000);
      ++num_events;
    }
  }
  EXPECT_EQ(num_events, 2000u);
  EXPECT_EQ(end_ns.size(), 4u);
}

TEST(ChromeTrace, StreamsKeepTheirRowsWhenStepsDiffer) {
  Timeline train = small_timeline(0);
  Timeline evaluate = small_timeline(1);
  std::swap(evaluate.ranks[0].streams[0], evaluate.ranks[0].streams[1]);
  const Timeline steps[] = {train, evaluate};
  std::map<std::string, int> rows;
  for (const Json& event : events_of(steps)) {
    if (event["name"] == "thread_name") {
      const bool is_new =
          rows.emplace(event["args"]["name"].get<std::string>(), event["tid"].get<int>()).second;
      EXPECT_TRUE(is_new);
    }
  }
  EXPECT_EQ(rows, (std::map<std::string, int>{{"compute", 1}, {"dp", 2}, {"offload", 3}}));
}

TEST(ChromeTrace, IsValidForNothingAndForStrangeNames) {
  EXPECT_TRUE(events_of({}).empty());
  Timeline strange = small_timeline(0);
  strange.ranks[0].names[0] = "tab\t quote\" back\\ not utf-8 \xff";
  strange.ranks[0].streams[0].name = "line\nbreak";
  EXPECT_NO_THROW(events_of({&strange, 1}));
}

TEST(ChromeTrace, RefusesOverlapWithinAStream) {
  Timeline timeline = small_timeline(0);
  timeline.ranks[0].tasks = {task_at(0, 0, 10), task_at(0, 9, 12)};
  EXPECT_THAT(message_of<InternalError>([&] {
                chrome_trace_json({&timeline, 1});
              }),
              ::testing::HasSubstr("stream compute has a task from 9 to 12 ns"));
}

TEST(ChromeTrace, ReplacesTheFileAtOnce) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  const Timeline steps[] = {small_timeline(0)};
  write_chrome_trace(path, steps);
  EXPECT_EQ(read_text_file(path, 1 << 20), chrome_trace_json(steps));
  EXPECT_EQ(folder.num_entries(), 1);
  EXPECT_THAT(message_of<DataError>([&] { write_chrome_trace(folder / "no/trace.json", steps); }),
              ::testing::HasSubstr("no/trace.json"));
}

}  // namespace
}  // namespace braid
