// Any bytes as report.json: a page on which no text became markup, and the measurements of the run,
// or DataError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/errors.h"
#include "fuzz_file.h"
#include "report/run_file.h"
#include "report/traced_steps.h"

namespace {

int count_of(std::string_view text, std::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const braid::FuzzFolder folder;
  const std::string path = folder.write("report.json", data, size);
  try {
    static_cast<void>(braid::with_earlier_trace(
        {.title = "new", .json = R"({"format":1,"data":{},"timeline":{},"schedule":""})"}, path,
        "remark"));
    const braid::RunReport run = braid::load_run_report(path);
    const std::string html = braid::report_html({&run, 1});
    if (count_of(html, "<script") != 2 || count_of(html, "</script") != 2) {
      std::abort();
    }
    static_cast<void>(braid::load_run_report(folder.path()));
    static_cast<void>(braid::measured_steps(run, path));
  } catch (const braid::DataError&) {
  }
  return 0;
}
