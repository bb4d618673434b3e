#include "report/report_html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/temp_folder.h"
#include "ops/op.h"
#include "report/run_file.h"
#include "report/sample_report.h"

namespace braid {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kHostile =
    "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> {{runs}} \"'&\xE2\x80\xA8 "
    "</title>";

int count_of(std::string_view text, std::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// What a browser takes as the content of the script element with this id.
std::string script_content(const std::string& html, const std::string& id) {
  const size_t tag = html.find("id=\"" + id + "\">");
  const size_t begin = html.find('>', tag) + 1;
  return html.substr(begin, html.find("</script", begin) - begin);
}

/// The run with this number on a page.
Json run_of(const std::string& html, size_t index = 0) {
  return Json::parse(script_content(html, "runs")).at(index);
}

TEST(ReportHtml, HoldsAllDataOfTheRun) {
  const ReportInput input = sample_report();
  const Json run = run_of(report_html(input));
  EXPECT_EQ(run["format"], kReportFormat);
  const Json& data = run["data"];
  EXPECT_EQ(data["title"], input.title);
  EXPECT_EQ(data["config"], input.config_toml);
  EXPECT_EQ(data["steps"]["loss"].size(), input.steps.size());
  EXPECT_EQ(data["passes"].size(), input.passes.size());
  const Json& timeline = run["timeline"];
  ASSERT_EQ(timeline["ranks"].size(), 2u);
  EXPECT_EQ(timeline["ranks"][1]["start_ns"]["delta"].size(), input.timeline.ranks[1].tasks.size());
}

TEST(ReportHtml, ShowsTheJobsOfAPipeline) {
  ReportInput input = sample_report();
  const Json run = run_of(report_html(input));
  EXPECT_THAT(run["schedule"].get<std::string>(),
              testing::AllOf(testing::StartsWith("<svg class=\"schedule\""),
                             HasSubstr("Jobs of 2 pipeline ranks")));
  const Json& layout = run["data"]["layout"];
  EXPECT_EQ(layout["text"], input.layout);
  EXPECT_EQ(layout["columns"].size(), 4u);
  EXPECT_EQ(layout["rows"][1][3], "240 MiB");
  input.jobs.clear();
  EXPECT_EQ(run_of(report_html(input))["schedule"], "");
}

TEST(ReportHtml, HoldsBothRunsOfAComparison) {
  const std::vector<RunReport> runs = {run_report(sample_report(200, 5)),
                                       {.title = "other <b>", .json = R"({"format":1})"}};
  const std::string html = report_html(runs);
  EXPECT_EQ(run_of(html, 0), Json::parse(runs[0].json));
  EXPECT_EQ(run_of(html, 1), Json::parse(runs[1].json));
  EXPECT_THAT(html, HasSubstr("<title>jargon-llama and other &lt;b&gt; "));
}

/// So that reports can be sent and opened: bytes per task, with two kernels in each.
TEST(ReportHtml, LargeTimelinesStaySmall) {
  constexpr int64_t kTasks = 20'000;
  const size_t without = report_html(sample_report(0, 0)).size();
  EXPECT_LT(report_html(sample_report(kTasks, 0)).size() - without, 60u * kTasks);
}

TEST(ReportHtml, NeedsNothingFromOutside) {
  std::string html = report_html(sample_report());
  const std::string namespace_name = "http://www.w3.org/2000/svg";  // nothing is loaded from there
  ASSERT_EQ(count_of(html, namespace_name), 1);
  html.erase(html.find(namespace_name), namespace_name.size());
  for (const char* outside : {"http:", "https:", "src=", "@import", "import(", "fetch(", "url("}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
  // The icon that browsers would ask for otherwise.
  EXPECT_EQ(count_of(html, "href="), 1);
  EXPECT_THAT(html, HasSubstr("href=\"data:,\""));
}

TEST(ReportHtml, TextsStayTexts) {
  ReportInput input = sample_report();
  const int num_scripts = count_of(report_html(input), "</script");
  EXPECT_EQ(num_scripts, 2);
  const std::string hostile = kHostile;
  input.title = input.model = input.config_toml = hostile;
  input.passes[0].report.summary = hostile;
  input.layout = input.stages.columns[0] = input.stages.rows[1][2] = hostile;
  input.timeline.ranks[0].names[0] = hostile;
  RankTimeline& rank = input.timeline.ranks[0];
  rank.streams[0].name = rank.kernel_names[0] = rank.device.name = rank.remark = hostile;
  rank.sequences[0].name = input.timeline.source = hostile;
  input.simulation = Json{{"cost", hostile}}.dump();
  const std::string html = report_html(input);
  EXPECT_EQ(count_of(html, "</script"), num_scripts);
  EXPECT_EQ(count_of(html, "<script"), num_scripts);
  EXPECT_EQ(count_of(html, "<!--"), 0);
  EXPECT_EQ(count_of(html, "<img"), 0);
  EXPECT_EQ(run_of(html)["data"]["model"], hostile);
  EXPECT_EQ(run_of(html)["data"]["simulation"]["cost"], hostile);
  EXPECT_EQ(run_of(html)["timeline"]["ranks"][0]["remark"], hostile);
  EXPECT_EQ(run_of(html)["timeline"]["ranks"][0]["names"][0], hostile);
  EXPECT_THAT(html, HasSubstr("<title>&lt;/script&gt;&lt;script&gt;alert(1)"));
}

/// Replaces every text, and adds a member whose name is hostile, too.
void make_hostile(Json& json) {
  if (json.is_string()) {
    json = kHostile;
  } else if (json.is_structured()) {
    for (Json& child : json) {
      make_hostile(child);
    }
  }
  if (json.is_object()) {
    json[kHostile] = kHostile;
  }
}

/// A report.json need not be one that braid wrote.
TEST(ReportHtml, TextsOfAnotherFileStayTexts) {
  const TempFolder folder;
  Json run = Json::parse(run_report(sample_report()).json);
  make_hostile(run);
  write_test_file(folder / "report.json", run.dump());
  const RunReport loaded = load_run_report(folder / "report.json");
  const std::string html = report_html({&loaded, 1});
  EXPECT_EQ(count_of(html, "</script"), 2);
  EXPECT_EQ(count_of(html, "<script"), 2);
  EXPECT_EQ(count_of(html, "</title"), 1);
  EXPECT_EQ(count_of(html, "<!--"), 0);
  EXPECT_EQ(count_of(html, "<img"), 0);
  EXPECT_EQ(run_of(html), run);
}

TEST(ReportHtml, EveryKindOfOpHasItsColors) {
  const std::string html = report_html(ReportInput{});
  for (const OpDefinition* const op : all_ops()) {
    std::string name(op_kind_name(*op->kind));
    EXPECT_THAT(html, HasSubstr("'" + name + "'"));
    std::replace(name.begin(), name.end(), ' ', '-');
    EXPECT_EQ(count_of(html, "--kind-" + name + ":"), 2) << "light and dark: " << op->name;
  }
}

TEST(ReportHtml, IsAPageWithoutAnyRecord) {
  const std::string html = report_html(ReportInput{});
  EXPECT_THAT(html, testing::StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(html, testing::EndsWith("</html>\n"));
  EXPECT_TRUE(run_of(html)["data"]["ranks"].empty());
  EXPECT_TRUE(run_of(html)["timeline"]["ranks"].empty());
}

}  // namespace
}  // namespace braid
