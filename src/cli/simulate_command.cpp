#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "cli/validators.h"
#include "config/reference.h"
#include "plan/describe_simulation.h"
#include "plan/device_cost.h"
#include "plan/run_costs.h"
#include "plan/simulated_report.h"
#include "plan/simulated_run.h"
#include "runtime/choose_settings.h"
#include "runtime/memory_check.h"
#include "sim/analytic_model.h"
#include "sim/measured_model.h"
#include "trace/chrome_trace.h"

namespace braid {
namespace {

struct Arguments {
  ConfigArguments config;
  std::string cluster;
  std::string profile;
  int64_t num_ranks = 0;  // 0: as the run file says
  std::string trace;
  std::string report;
  std::vector<int> trace_ranks;
  bool no_contention = false;
  bool json = false;
  bool auto_overlap = false;
  std::string save_config;
};

/// The named cluster; with --ranks as many more nodes of it as these ranks need.
Cluster cluster_of(const Arguments& arguments, int num_ranks) {
  Cluster cluster = parse_cluster(arguments.cluster);
  return arguments.num_ranks == 0 || num_ranks <= cluster.num_devices
             ? cluster
             : cluster_for_ranks(cluster, num_ranks);
}

std::unique_ptr<CostModel> cost_model(const Arguments& arguments, int num_ranks) {
  if (arguments.cluster.empty() == arguments.profile.empty()) {
    throw_config_error(
        "say on what to simulate: --cluster (h200x8, h100x1024) or --profile (a file of `braid "
        "calibrate`), not both");
  }
  if (!arguments.profile.empty()) {
    return make_measured_model(load_profile(arguments.profile), num_ranks);
  }
  const Cluster cluster = cluster_of(arguments, num_ranks);
  if (cluster.num_devices < num_ranks) {
    throw_config_error("cluster {} has {} devices, and parallel.ranks is {}; take {}, or --ranks",
                       cluster.name, cluster.num_devices, num_ranks,
                       cluster_for_ranks(cluster, num_ranks).name);
  }
  return make_analytic_model(cluster);
}

/// What overlap.cost says of the machine that is simulated.
std::string cost_name(const Arguments& arguments, int num_ranks) {
  return arguments.profile.empty() ? cluster_of(arguments, num_ranks).name : arguments.profile;
}

/// What --auto-overlap begins with: what mode = "auto" reads, which in another mode are other
/// choices. Ranks that share a GPU have no choice of what moves their bytes.
OverlapConfig searched_overlap(const RunConfig& config) {
  const OverlapConfig& given = config.overlap;
  if (given.mode == "auto") {
    return given;
  }
  OverlapConfig searched;
  searched.disable_passes = given.disable_passes;
  if (config.runtime.ranks_per_gpu > 1) {
    searched.comm_engine = given.comm_engine;
  }
  return searched;
}

/// Resolves what the run leaves open, with the device that is simulated, and overlap with its costs
/// if --auto-overlap asks for it.
RunConfig with_settings(RunConfig config, int64_t vocabulary, const CostModel& model,
                        const Arguments& arguments, const Console& console) {
  ChooseOverlapOptions options;
  if (!arguments.json) {
    options.print = [&console](std::string_view text) { console.print(text); };
    options.progress_bar = console.is_terminal();
  }
  const std::string cost = cost_name(arguments, static_cast<int>(config.parallel.ranks));
  if (config.overlap.cost == kDeviceCost) {
    config.overlap.cost = cost;
  }
  if (arguments.auto_overlap) {
    config.overlap = searched_overlap(config);
    config.overlap.cost = cost;
    options.model = &model;
  }
  const std::optional<GpuMemory> gpu = memory_of(model.cluster().device);
  return choose_settings(
      config, vocabulary,
      gpu ? std::optional(RunMemory{.gpu = gpu, .host_bytes = std::nullopt}) : std::nullopt,
      options);
}

void run(const Arguments& arguments, const Console& console) {
  auto [config, vocabulary] = load_planned_config(arguments.config);
  if (arguments.num_ranks > 0) {
    config = scaled_to_ranks(std::move(config), arguments.num_ranks);
  }
  const auto model = with_links_of_run(
      cost_model(arguments, static_cast<int>(config.parallel.ranks)), config.links);
  config = with_settings(std::move(config), vocabulary, *model, arguments, console);
  if (!arguments.save_config.empty()) {
    write_file_atomically(arguments.save_config, to_toml(config));
  }
  const SimulatedRun simulated(config, vocabulary, *model,
                               {.contention = !arguments.no_contention});
  const std::vector<int> ranks =
      arguments.trace_ranks.empty() ? ranks_to_show(simulated) : arguments.trace_ranks;
  if (!arguments.trace.empty()) {
    const Timeline timeline = simulated.timeline(ranks);
    write_chrome_trace(arguments.trace, {&timeline, 1});
  }
  std::string text = arguments.json
                         ? simulation_json(simulated)
                         : describe_simulation(simulated) + describe_overlap(simulated, ranks);
  if (!arguments.report.empty()) {
    const std::string page = write_simulated_report(arguments.report, simulated, ranks);
    text += arguments.json ? "" : "report    " + page + "\n";
  }
  console.print(text);
}

}  // namespace

void add_simulate_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "simulate",
      "Run a step of all ranks in simulated time: tokens/s, MFU, bubble, exposed communication");
  add_config_arguments(*command, arguments->config);
  command
      ->add_option("--cluster", arguments->cluster,
                   "Devices and how many, like h200x8 or h100x1024, in nodes of 8, or h100x16:4; "
                   "costs are those of data sheets")
      ->type_name("CLUSTER");
  command
      ->add_option("--profile", arguments->profile,
                   "Instead: a profile of `braid calibrate`, of as many devices as there are ranks")
      ->type_name("FILE");
  command
      ->add_option("--ranks", arguments->num_ranks,
                   "Simulate that many ranks instead of parallel.ranks: the data dimension and "
                   "train.global_batch grow along, tensor, context and pipeline stay, and the "
                   "cluster gets the nodes that are needed")
      ->type_name("N")
      ->check(between(1, kMaxClusterDevices));
  command
      ->add_option("--trace", arguments->trace,
                   "Write a timeline for Perfetto (ui.perfetto.dev) or chrome://tracing")
      ->type_name("FILE");
  command
      ->add_option("--report", arguments->report,
                   "Write a folder like that of a run: report.html, and what `braid report FOLDER "
                   "--compare OTHER` needs to put another run, simulated or measured, beside it")
      ->type_name("FOLDER");
  command
      ->add_option("--trace-ranks", arguments->trace_ranks,
                   "Ranks whose timelines are shown, and whose communication is explained, like "
                   "0,8; without it the first of each pipeline stage, at most as many as a page "
                   "can hold")
      ->type_name("RANKS")
      ->delimiter(',')
      ->check(at_least(0));
  command->add_flag("--no-contention", arguments->no_contention,
                    "Let nothing slow anything else: the difference is what contention costs");
  command->add_flag("--auto-overlap", arguments->auto_overlap,
                    "Search the fastest overlap that fits the memory, as overlap.mode = \"auto\" "
                    "with overlap.cost does, for the machine that is simulated; instead of what a "
                    "run file with another mode says");
  command
      ->add_option("--save-config", arguments->save_config,
                   "Write the run file that was simulated, every key and what was found included")
      ->type_name("FILE");
  command->add_flag("--json", arguments->json, "Print a JSON object instead of text");
  command->footer(
      "Needs no data and no device. docs/simulator.md has the model, its formulas and limits.\n\n"
      "  braid simulate run.toml --cluster h200x8\n"
      "  braid simulate run.toml --cluster h200x8 --auto-overlap --save-config found.toml\n"
      "  braid simulate run.toml --cluster h200x8 --ranks 1024 --json\n"
      "  braid simulate run.toml --cluster h100x64 --trace step.json --trace-ranks 0,8\n"
      "  braid simulate run.toml --cluster h200x8 --report runs/on\n"
      "  braid simulate run.toml --cluster h200x8 --report runs/off --set overlap.mode=off\n"
      "  braid report runs/off --compare runs/on");
  command->callback([arguments, &console] { run(*arguments, console); });
}

}  // namespace braid
