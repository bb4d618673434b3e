#include <nlohmann/json.hpp>

#include "cli/cli_fixture.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
  EXPECT_EQ(output_of({"report", "runs/run", "--compare", "runs/other"}),
            "report   runs/run/compare.html\n");
  const auto runs = runs_of("runs/run/compare.html");
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0]["data"]["title"], "run");
  EXPECT_EQ(runs[1]["data"]["title"], "other");
  EXPECT_THAT(runs[1]["data"]["config"].get<std::string>(), HasSubstr("learning_rate = 0.002"));
  EXPECT_FALSE(runs[0]["timeline"]["ranks"].empty());
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
  EXPECT_THAT(error_of({"report", "."}, 1), HasSubstr("'.' is no run folder"));
  EXPECT_THAT(error_of({"report", "runs/run", "--compare", "absent"}, 1), HasSubstr("absent"));
  EXPECT_THAT(error_of({"report", "corpus.txt"}, 1), HasSubstr("corpus.txt"));
  EXPECT_THAT(error_of({"report", "runs/run", "--out", "no/folder/page.html"}, 1),
              HasSubstr("no/folder/page.html"));
  EXPECT_THAT(error_of({"report"}, 2), HasSubstr("run"));
  const std::string whole = read("runs/run/report.json");
  write("runs/run/report.json", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(error_of({"report", "runs/run"}, 1),
              AllOf(HasSubstr("report.json"), HasSubstr("cut short")));
}

}  // namespace
}  // namespace braid
