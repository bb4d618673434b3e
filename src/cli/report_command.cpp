#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "config/changes.h"
#include "config/fields.h"
#include "config/load.h"
#include "plan/run_costs.h"
#include "plan/run_prediction.h"
#include "plan/simulated_run.h"
#include "report/comparison.h"
#include "report/report_data.h"
#include "report/run_file.h"
#include "sim/measured_model.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::string run;
  std::string compare;
  std::string cost;
  std::string out;
};

std::string run_folder(const std::string& run) {
  const fs::path path = run;
  return (fs::is_directory(path) ? path : path.parent_path()).string();
}

RunReport load_run(const std::string& path, const Console& console) {
  RunReport run = load_run_report(path);
  if (!run.note.empty()) {
    console.print(run.note + "\n");
  }
  return run;
}

/// The default place of the page: the folder of the first run.
std::string page_of(const ReportArguments& arguments) {
  const char* const name = !arguments.cost.empty()      ? "prediction.html"
                           : !arguments.compare.empty() ? "compare.html"
                                                        : "report.html";
  return arguments.out.empty() ? (fs::path(run_folder(arguments.run)) / name).string()
                               : arguments.out;
}

/// The report of a run with a prediction in its data.
RunReport with_prediction(const RunReport& run, const Prediction& prediction) {
  nlohmann::ordered_json json = parse_ordered_json(run.json, "the report of the run");
  json["data"]["prediction"] = prediction_json(prediction);
  return {.title = run.title, .json = script_json(json)};
}

/// Keys that decide what a run learns from, and how much of it in a step.
bool decides_work(const Field& field) {
  const std::string name = full_name(field);
  return name.starts_with("model.") || name.starts_with("data.") || name == "train.global_batch" ||
         name == "train.sequence";
}

/// A warning with the keys by which the losses and speeds of two runs are not those of one task;
/// empty if there are none, or if a report has no configuration that this braid reads.
std::string describe_other_work(const RunReport& a, const RunReport& b) {
  const auto config_of = [](const RunReport& run) {
    const nlohmann::json report = parse_json(run.json, "the report of the run");
    return parse_config(report.at("data").at("config").get<std::string>(), "the report");
  };
  std::string keys;
  try {
    for (const KeyChange& change : changed_keys(config_of(a), config_of(b))) {
      keys += decides_work(*change.field) ? fmt::format("\n         {}", to_text(change)) : "";
    }
  } catch (const ConfigError&) {  // of another version
  } catch (const nlohmann::json::exception&) {
  }
  return keys.empty() ? "" : "warning  these runs do not do the same work:" + keys + "\n";
}

/// Simulates the step that the run trained, prints the difference from the measurement, stores the
/// figures in the run's report.json, and puts both timelines on one page.
std::vector<RunReport> compare_with_prediction(const ReportArguments& arguments,
                                               const Console& console) {
  const RunReport run = load_run(arguments.run, console);
  const MeasuredSteps measured = measured_steps(run, arguments.run);
  const std::string folder = run_folder(arguments.run);
  const auto [config, vocabulary] =
      load_planned_config((fs::path(folder) / "config.toml").string());
  const auto model = with_links_of_run(
      load_cost_model(arguments.cost, static_cast<int>(config.parallel.ranks)), config.links);
  const SimulatedRun simulated(resolve_run(config, vocabulary), *model,
                               {.starts_on_arrival = true});
  const Prediction prediction = compare_with_measured(simulated, measured);
  console.print(describe_prediction_error(prediction));
  RunReport report = with_prediction(run, prediction);
  save_run_report((fs::path(folder) / kRunReportFile).string(), report);
  return {std::move(report), run_report(predicted_step(simulated, run.title + ", predicted"))};
}

std::vector<RunReport> runs_of(const ReportArguments& arguments, const Console& console) {
  if (!arguments.cost.empty()) {
    return compare_with_prediction(arguments, console);
  }
  std::vector<RunReport> runs = {load_run(arguments.run, console)};
  if (!arguments.compare.empty()) {
    runs.push_back(load_run(arguments.compare, console));
    console.print(describe_other_work(runs[0], runs[1]) + describe_comparison(runs[0], runs[1]));
  }
  return runs;
}

void run(const ReportArguments& arguments, const Console& console) {
  const std::vector<RunReport> runs = runs_of(arguments, console);
  for (const RunReport& one : runs) {
    console.print(describe_tables(one));
  }
  const std::string page = page_of(arguments);
  write_file_atomically(page, report_html(runs));
  console.print("report   " + page + "\n");
}

}  // namespace

void add_report_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = app.add_subcommand(
      "report", "Write the report page of a run, or a page that compares two runs");
  command
      ->add_option("run", arguments->run,
                   "Run folder (the run may still be running), or its report.json")
      ->type_name("RUN")
      ->required();
  CLI::Option* const compare =
      command
          ->add_option(
              "--compare", arguments->compare,
              "A second run, such as the bf16 twin of an FP8 run: prints losses, speed and "
              "memory side by side; the page also has losses in one chart, timelines on "
              "one scale of time, and settings that differ")
          ->type_name("RUN");
  command
      ->add_option("--cost", arguments->cost,
                   "Instead, simulate the run's step with the costs of a cluster (h200x8) or a "
                   "profile of `braid calibrate` (a path or *.json), print prediction, measurement "
                   "and error, and show both timelines on one page")
      ->type_name("CLUSTER|FILE")
      ->excludes(compare);
  command
      ->add_option("--out", arguments->out,
                   "The page to write (default: report.html, compare.html or prediction.html in "
                   "the folder of RUN)")
      ->type_name("FILE");
  command->footer(
      "The page is one file that works offline; docs/report.md says how to read it.\n\n  braid "
      "report runs/a\n  braid report runs/a --compare runs/b --out a_and_b.html\n  braid report "
      "runs/a --cost cpu.json");
  command->callback([arguments, &console] { run(*arguments, console); });
}

}  // namespace braid
