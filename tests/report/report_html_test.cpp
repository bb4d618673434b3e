#include "report/report_html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "report/sample_report.h"

namespace braid {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing::Not;

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

TEST(ReportHtml, HoldsAllDataOfTheRun) {
  const ReportInput input = sample_report();
  const std::string html = report_html(input);
  const Json data = Json::parse(script_content(html, "data"));
  EXPECT_EQ(data["title"], input.title);
  EXPECT_EQ(data["config"], input.config_toml);
  EXPECT_EQ(data["steps"]["loss"].size(), input.steps.size());
  EXPECT_EQ(data["passes"].size(), input.passes.size());
  const Json timeline = Json::parse(script_content(html, "timeline-data"));
  ASSERT_EQ(timeline["ranks"].size(), 2u);
  EXPECT_EQ(timeline["ranks"][1]["start_ns"].size(), input.timeline.ranks[1].tasks.size());
}

TEST(ReportHtml, NeedsNothingFromOutside) {
  const std::string html = report_html(sample_report());
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
  EXPECT_EQ(num_scripts, 3);
  const std::string hostile = "</script><script>alert(1)</script><!-- {{data}} \"'&";
  input.title = input.model = input.config_toml = hostile;
  input.passes[0].report.summary = hostile;
  input.timeline.ranks[0].names[0] = hostile;
  input.timeline.ranks[0].streams[0].name = hostile;
  const std::string html = report_html(input);
  EXPECT_EQ(count_of(html, "</script"), num_scripts);
  EXPECT_EQ(count_of(html, "<script"), num_scripts);
  EXPECT_EQ(count_of(html, "<!--"), 0);
  EXPECT_EQ(Json::parse(script_content(html, "data"))["model"], hostile);
  EXPECT_EQ(Json::parse(script_content(html, "timeline-data"))["ranks"][0]["names"][0], hostile);
  EXPECT_THAT(html, HasSubstr("<title>&lt;/script&gt;&lt;script&gt;alert(1)"));
}

TEST(ReportHtml, IsAPageWithoutAnyRecord) {
  const std::string html = report_html({});
  EXPECT_THAT(html, testing::StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(html, testing::EndsWith("</html>\n"));
  EXPECT_TRUE(Json::parse(script_content(html, "data"))["ranks"].empty());
  EXPECT_TRUE(Json::parse(script_content(html, "timeline-data"))["ranks"].empty());
}

}  // namespace
}  // namespace braid
