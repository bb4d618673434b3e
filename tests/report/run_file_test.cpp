#include "report/run_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "report/metrics_file.h"
#include "report/sample_report.h"

namespace braid {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::string saved_in(const TempFolder& folder) {
  const std::string path = folder / kRunReportFile;
  save_run_report(path, run_report(sample_report(200, 5)));
  return path;
}

TEST(RunFile, ComesBackAsItWas) {
  const TempFolder folder;
  const RunReport written = run_report(sample_report(200, 5));
  const RunReport read = load_run_report(saved_in(folder));
  EXPECT_EQ(read.title, "jargon-llama");
  EXPECT_EQ(Json::parse(read.json), Json::parse(written.json));
  EXPECT_EQ(read.json.find('<'), std::string::npos);
}

TEST(RunFile, AFolderGivesItsNameAndItsMetrics) {
  const TempFolder folder;
  saved_in(folder);
  write_test_file(folder / "metrics.jsonl", metrics_line(EvalRecord{0, 9.5}) +
                                                metrics_line(StepRecord{.step = 1, .loss = 2.5}) +
                                                "{\"step\": 2, \"lo");
  for (const std::string& path : {folder.path().string(), folder.path().string() + "/"}) {
    const RunReport run = load_run_report(path);
    EXPECT_EQ(run.title, folder.path().filename().string());
    const Json data = Json::parse(run.json)["data"];
    EXPECT_EQ(data["title"], run.title);
    EXPECT_EQ(data["steps"]["step"], Json({1}));
    EXPECT_EQ(data["steps"]["loss"], Json({2.5}));
    EXPECT_EQ(data["evaluations"]["loss"], Json({9.5}));
  }
}

TEST(RunFile, WithoutATitleThereIsNone) {
  const TempFolder folder;
  const std::string path = saved_in(folder);
  Json run = Json::parse(read_text_file(path, int64_t{1} << 30));
  run["data"]["title"] = 7;
  write_test_file(path, run.dump());
  EXPECT_EQ(load_run_report(path).title, "");
  run["data"].erase("title");
  write_test_file(path, run.dump());
  EXPECT_EQ(load_run_report(path).title, "");
}

std::string refusal(const std::string& path) {
  return message_of<DataError>([&] { load_run_report(path); });
}

TEST(RunFile, ADamagedLineOfTheMetricsIsNoted) {
  const TempFolder folder;
  saved_in(folder);
  write_test_file(folder / "metrics.jsonl",
                  "rubbish\n" + metrics_line(StepRecord{.step = 2, .loss = 2.5}));
  const RunReport run = load_run_report(folder.path().string());
  EXPECT_EQ(Json::parse(run.json)["data"]["steps"]["step"], Json({2}));
  EXPECT_THAT(run.note, testing::HasSubstr("metrics.jsonl' line 1 is not JSON"));
}

TEST(RunFile, WhatIsNoRunIsNamed) {
  const TempFolder folder;
  EXPECT_THAT(refusal(folder / "absent"), HasSubstr("absent' does not exist"));
  EXPECT_THAT(refusal(folder.path().string()),
              AllOf(HasSubstr("is not a run folder"), HasSubstr("report.json")));
  write_test_file(folder / "other.json", "{\"a\": 1}");
  EXPECT_THAT(refusal(folder / "other.json"), HasSubstr("is not the report of a run"));
  write_test_file(folder / "list.json", "[1]");
  EXPECT_THAT(refusal(folder / "list.json"), HasSubstr("is not the report of a run"));
}

TEST(RunFile, CutFilesAreRefusedWhereverTheyEnd) {
  const TempFolder folder;
  const std::string path = saved_in(folder);
  const std::string whole = read_text_file(path, int64_t{1} << 30);
  for (size_t size = 0; size + 2 < whole.size(); size += 1 + whole.size() / 50) {
    write_test_file(path, whole.substr(0, size));
    EXPECT_THAT(refusal(path), AllOf(HasSubstr(path), HasSubstr("is not JSON at byte"))) << size;
  }
}

TEST(RunFile, MissingPartsAndOtherFormatsAreRefused) {
  const TempFolder folder;
  const std::string path = saved_in(folder);
  const Json whole = Json::parse(read_text_file(path, int64_t{1} << 30));
  for (const char* part : {"data", "timeline", "schedule"}) {
    Json damaged = whole;
    damaged[part] = 7;
    write_test_file(path, damaged.dump());
    EXPECT_THAT(refusal(path), AllOf(HasSubstr("is damaged"), HasSubstr(part)));
    damaged.erase(part);
    write_test_file(path, damaged.dump());
    EXPECT_THAT(refusal(path), HasSubstr(part));
  }
  std::string deep = whole.dump();
  deep.insert(deep.find("\"data\":{") + 8,
              "\"x\":" + std::string(100'000, '[') + std::string(100'000, ']') + ",");
  write_test_file(path, deep);
  EXPECT_THAT(refusal(path), HasSubstr("deeper than 64"));
  Json newer = whole;
  newer["format"] = kReportFormat + 1;
  write_test_file(path, newer.dump());
  EXPECT_THAT(refusal(path), HasSubstr("has format 2, but this braid reads format 1"));
}

/// As a resumed process makes it: later steps, nothing traced.
ReportInput untraced_report() {
  ReportInput input = sample_report(0, 9);
  input.timeline.ranks.clear();
  input.memory_over_time.clear();
  return input;
}

TEST(WithEarlierTrace, KeepsTheStepThatAnEarlierProcessTraced) {
  const TempFolder folder;
  const std::string path = saved_in(folder);
  const Json earlier = Json::parse(load_run_report(path).json);
  RunReport later = with_earlier_trace(run_report(untraced_report()), path, "traced before");
  Json json = Json::parse(later.json);
  EXPECT_EQ(json["timeline"], earlier["timeline"]);
  for (const char* part : {"ranks", "communication", "memory_over_time"}) {
    EXPECT_EQ(json["data"][part], earlier["data"][part]) << part;
  }
  EXPECT_EQ(json["data"]["steps"]["step"].size(), 9u);
  EXPECT_EQ(json["data"]["trace_remark"], "traced before");
  EXPECT_EQ(later.json.find('<'), std::string::npos);
  // A third process says of whom the step is, not that the second one had it.
  save_run_report(path, later);
  later = with_earlier_trace(run_report(untraced_report()), path, "traced before that");
  EXPECT_EQ(Json::parse(later.json)["data"]["trace_remark"], "traced before");
  EXPECT_EQ(Json::parse(later.json)["timeline"], earlier["timeline"]);
}

TEST(WithEarlierTrace, ChangesNothingWhereThereIsNothingToKeep) {
  const TempFolder folder;
  const std::string path = saved_in(folder);
  const RunReport traced = run_report(sample_report(300, 9));
  EXPECT_EQ(with_earlier_trace(traced, path, "x").json, traced.json);
  const RunReport untraced = run_report(untraced_report());
  save_run_report(folder / "untraced.json", untraced);
  write_test_file(folder / "damaged.json", "{\"format\": 1");
  for (const char* other : {"absent.json", "untraced.json", "damaged.json"}) {
    EXPECT_EQ(with_earlier_trace(untraced, folder / other, "x").json, untraced.json) << other;
  }
}

}  // namespace
}  // namespace braid
