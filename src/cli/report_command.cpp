#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "cli/commands.h"
#include "report/run_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::string run;
  std::string compare;
  std::string out;
};

/// Where the page goes if nobody says so: into the folder of the first run.
std::string default_page(const Arguments& arguments) {
  const fs::path run = arguments.run;
  const fs::path folder = fs::is_directory(run) ? run : run.parent_path();
  return (folder / (arguments.compare.empty() ? "report.html" : "compare.html")).string();
}

void run(const Arguments& arguments, const Console& console) {
  std::vector<RunReport> runs = {load_run_report(arguments.run)};
  if (!arguments.compare.empty()) {
    runs.push_back(load_run_report(arguments.compare));
  }
  const std::string page = arguments.out.empty() ? default_page(arguments) : arguments.out;
  write_file_atomically(page, report_html(runs));
  console.print("report   " + page + "\n");
}

}  // namespace

void add_report_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("report", "Make the page of a run anew, or one that compares two runs");
  command
      ->add_option("run", arguments->run,
                   "Run folder (it may still be running), or the report.json of one")
      ->type_name("RUN")
      ->required();
  command
      ->add_option("--compare", arguments->compare,
                   "A second run: figures side by side, losses in one chart, timelines on one "
                   "scale of time, settings that differ")
      ->type_name("RUN");
  command
      ->add_option("--out", arguments->out,
                   "The page; without it report.html, or compare.html, in the folder of RUN")
      ->type_name("FILE");
  command->footer(
      "The page is one file that needs no network; docs/report.md says how to read it.\n\n"
      "  braid report runs/a\n"
      "  braid report runs/a --compare runs/b --out a_and_b.html");
  command->callback([arguments, &console] { run(*arguments, console); });
}

}  // namespace braid
