#include "report/report_html.h"

#include <string_view>
#include <unordered_map>

#include "base/errors.h"
#include "report/assets.h"
#include "report/report_data.h"
#include "trace/timeline_json.h"

namespace braid {
namespace {

/// Replaces each {{name}} by its part. What a part holds is not looked at.
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

std::string report_html(const ReportInput& input) {
  return fill_page(report_page(), {{"title", escape_html(input.title)},
                                   {"style", std::string(report_style())},
                                   {"script", std::string(report_script())},
                                   {"data", report_data_json(input)},
                                   {"timeline", timeline_json(input.timeline)}});
}

}  // namespace braid
