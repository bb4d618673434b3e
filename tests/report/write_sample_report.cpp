// write_sample_report PATH TASKS STEPS: a made-up report of that size, for the test in a browser.
// TASKS 0: no timeline.

#include <cstdio>
#include <cstdlib>

#include "base/file.h"
#include "report/sample_report.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: write_sample_report PATH TASKS STEPS\n");
    return 2;
  }
  const int64_t num_tasks = std::atoll(argv[2]);
  const int64_t num_steps = std::atoll(argv[3]);
  braid::ReportInput input = braid::sample_report(num_tasks, num_steps);
  input.title += " </script><b>&amp;";
  input.config_toml += "# </script><script>throw 1</script>\n";
  if (num_tasks == 0) {
    input.timeline = {};
  }
  if (num_steps == 0) {
    input.evaluations.clear();
  }
  braid::write_file_atomically(argv[1], braid::report_html(input));
  return 0;
}
