#include <nlohmann/json.hpp>

#include "cli/cli_fixture.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ReportCommand : public Cli {
 protected:
  ReportCommand() {
    write_run();
    output_of(train({}));
  }

  /// The runs that a page holds.
  nlohmann::json runs_of(const std::string& page) const {
    const std::string html = read(page);
    const std::string tag = "id=\"runs\">";
    const size_t begin = html.find(tag) + tag.size();
    return nlohmann::json::parse(html.substr(begin, html.find("</script", begin) - begin));
  }
};

TEST_F(ReportCommand, MakesThePageOfARunAnew) {
  const std::string page = read("runs/run/report.html");
  std::filesystem::remove(path("runs/run/report.html"));
  EXPECT_EQ(output_of({"report", "runs/run"}), "report   runs/run/report.html\n");
  EXPECT_EQ(read("runs/run/report.html"), page);
  output_of({"report", "runs/run/report.json", "--out", "page.html"});
  EXPECT_EQ(runs_of("page.html"), runs_of("runs/run/report.html"));
}

TEST_F(ReportCommand, ComparesTwoRuns) {
  output_of(train({"logging.run_folder=runs/other", "optimizer.learning_rate=2e-3"}));
  EXPECT_THAT(output_of({"report", "runs/run", "--compare", "runs/other"}),
              AllOf(HasSubstr("\nloss, step"), HasSubstr("\ntokens/s, median"),
                    HasSubstr("\npeak memory of a rank"),
                    EndsWith("report   runs/run/compare.html\n"), Not(HasSubstr("warning"))));
  const auto runs = runs_of("runs/run/compare.html");
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0]["data"]["title"], "run");
  EXPECT_EQ(runs[1]["data"]["title"], "other");
  EXPECT_THAT(runs[1]["data"]["config"].get<std::string>(), HasSubstr("learning_rate = 0.002"));
  EXPECT_FALSE(runs[0]["timeline"]["ranks"].empty());
}

TEST_F(ReportCommand, WarnsIfTwoRunsDoNotDoTheSameWork) {
  output_of(train({"logging.run_folder=runs/other", "train.sequence=16", "train.steps=2",
                   "optimizer.learning_rate=2e-3"}));
  EXPECT_THAT(output_of({"report", "runs/run", "--compare", "runs/other"}),
              StartsWith("warning  these runs do not do the same work:\n"
                         "         train.sequence = 32 -> 16\n   "));
}

TEST_F(ReportCommand, ARunThatWasKilledHasAReport) {
  // What is left where neither the last step nor the end was reached.
  const std::string metrics = read("runs/run/metrics.jsonl");
  write("runs/run/metrics.jsonl", metrics.substr(0, metrics.size() / 2));
  output_of({"report", "runs/run"});
  const auto steps = runs_of("runs/run/report.html")[0]["data"]["steps"]["step"];
  EXPECT_GE(steps.size(), 1u);
  EXPECT_LT(steps.size(), 6u);
}

TEST_F(ReportCommand, WhatIsNoRunIsNamed) {
  EXPECT_THAT(error_of({"report", "absent"}, 1), HasSubstr("'absent' does not exist"));
  EXPECT_THAT(error_of({"report", "."}, 1), HasSubstr("'.' is not a run folder"));
  EXPECT_THAT(error_of({"report", "runs/run", "--compare", "absent"}, 1), HasSubstr("absent"));
  EXPECT_THAT(error_of({"report", "corpus.txt"}, 1), HasSubstr("corpus.txt"));
  EXPECT_THAT(error_of({"report", "runs/run", "--out", "no/folder/page.html"}, 1),
              HasSubstr("no/folder/page.html"));
  EXPECT_THAT(error_of({"report"}, 2), HasSubstr("run"));
  const std::string whole = read("runs/run/report.json");
  write("runs/run/report.json", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(error_of({"report", "runs/run"}, 1),
              AllOf(HasSubstr("report.json"), HasSubstr("is not JSON at byte ")));
}

TEST_F(ReportCommand, SaysHowFarAPredictionIsOff) {
  const std::string text = output_of({"report", "runs/run", "--cost", "cpux2"});
  EXPECT_THAT(text, AllOf(HasSubstr("cost      cpux2, analytic"),
                          HasSubstr("measured  mean of 2 traced steps and all ranks\n"),
                          HasSubstr("\nstep  "), HasSubstr("\nexposed communication  "),
                          HasSubstr("\n  data ranks  "), HasSubstr("\n  phase comm  "),
                          HasSubstr("\nidle  "), HasSubstr("\nlargest errors by op"),
                          HasSubstr("report   runs/run/prediction.html\n")));
  const auto runs = runs_of("runs/run/prediction.html");
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[1]["data"]["title"], "run, predicted");
  EXPECT_EQ(runs[1]["timeline"]["source"], "sim");
  const auto data = nlohmann::json::parse(read("runs/run/report.json"))["data"];
  EXPECT_EQ(data["traced_steps"].size(), 2u);
  EXPECT_EQ(data["prediction"]["num_steps"], 2);
  EXPECT_GT(data["prediction"]["predicted"]["by_group"]["data"]["total_ns"], 0);
  EXPECT_EQ(output_of({"report", "runs/run"}), "report   runs/run/report.html\n")
      << "a report with a prediction is one that can be read";
}

TEST_F(ReportCommand, APredictionHasTheLinksOfTheRun) {
  output_of(train({"logging.run_folder=runs/slow", "links.data_latency_us=20000"}));
  const std::string text = output_of({"report", "runs/slow", "--cost", "cpux2", "--out", "p.html"});
  EXPECT_THAT(text, AllOf(HasSubstr("emulated links"), HasSubstr("report   p.html\n")));
  const auto data = nlohmann::json::parse(read("runs/slow/report.json"))["data"];
  for (const char* const side : {"measured", "predicted"}) {
    EXPECT_GT(data["prediction"][side]["by_group"]["data"]["total_ns"], 20e6) << side;
  }
}

TEST_F(ReportCommand, PredictionsOfWhatCannotBeSimulatedAreRefused) {
  EXPECT_THAT(error_of({"report", "runs/run", "--cost", "h300x8"}, 2),
              HasSubstr("unknown device \"h300\""));
  EXPECT_THAT(error_of({"report", "runs/run", "--cost", "cpu"}, 2),
              HasSubstr("cpu has 1 devices and parallel.ranks is 2"));
  EXPECT_THAT(error_of({"report", "runs/run", "--cost", "none.json"}, 1), HasSubstr("none.json"));
  EXPECT_THAT(error_of({"report", "runs/run", "--cost", "cpux2", "--compare", "runs/run"}, 2),
              AllOf(HasSubstr("--cost"), HasSubstr("--compare")));
  output_of(train({"logging.run_folder=runs/untraced", "logging.trace_steps=[]"}));
  EXPECT_THAT(
      error_of({"report", "runs/untraced", "--cost", "cpux2"}, 1),
      AllOf(HasSubstr("'runs/untraced' has no traced step"), HasSubstr("logging.trace_steps")));
}

}  // namespace
}  // namespace braid
