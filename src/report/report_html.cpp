#include "report/report_html.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>

#include "base/errors.h"
#include "report/assets.h"
#include "report/report_data.h"
#include "report/schedule_svg.h"
#include "trace/timeline_json.h"

namespace braid {
namespace {

/// Replaces each {{name}} by its part, without looking inside the part.
std::string fill_page(std::string_view page,
                      const std::unordered_map<std::string_view, std::string>& parts) {
  std::string html;
  while (true) {
    const size_t open = page.find("{{");
    html += page.substr(0, open);
    if (open == std::string_view::npos) {
      return html;
    }
    const size_t close = page.find("}}", open);
    const std::string_view name = page.substr(open + 2, close - open - 2);
    const auto part = parts.find(name);
    check(part != parts.end(), "page.html asks for \"{}\", which no part has", name);
    html += part->second;
    page.remove_prefix(close + 2);
  }
}

}  // namespace

RunReport run_report(const ReportInput& input) {
  const std::string schedule = input.jobs.empty() ? "" : schedule_svg(input.jobs);
  return {.title = input.title,
          .json = fmt::format(R"({{"format":{},"data":{},"timeline":{},"schedule":{}}})",
                              kReportFormat, report_data_json(input), timeline_json(input.timeline),
                              script_json(schedule))};
}

std::string report_html(std::span<const RunReport> runs) {
  std::string titles;
  std::string all;
  for (const RunReport& run : runs) {
    titles += (titles.empty() ? "" : " and ") + run.title;
    all += (all.empty() ? "[" : ",\n") + run.json;
  }
  return fill_page(report_page(), {{"title", escape_html(titles)},
                                   {"style", std::string(report_style())},
                                   {"script", std::string(report_script())},
                                   {"runs", all + "]"}});
}

std::string report_html(const ReportInput& input) {
  const RunReport run = run_report(input);
  return report_html({&run, 1});
}

}  // namespace braid
