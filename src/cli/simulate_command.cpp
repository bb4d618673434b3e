#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "cli/failure_arguments.h"
#include "cli/routing_arguments.h"
#include "cli/simulated_machine.h"
#include "cli/validators.h"
#include "config/reference.h"
#include "plan/describe_goodput.h"
#include "plan/describe_simulation.h"
#include "plan/run_costs.h"
#include "plan/simulated_report.h"
#include "plan/simulated_run.h"
#include "trace/chrome_trace.h"

namespace braid {
namespace {

struct SimulateArguments {
  ConfigArguments config;
  SimulatedMachine machine;
  RoutingArguments routing;
  FailureArguments failures;
  std::string trace;
  std::string report;
  std::vector<int> trace_ranks;
  int64_t document_length = 0;
  bool no_contention = false;
  bool json = false;
  std::string save_config;
};

void run(const SimulateArguments& arguments, const Console& console) {
  ConfigArguments of_config = arguments.config;
  if (arguments.document_length > 0) {
    of_config.overrides.push_back(
        fmt::format("data.document_length={}", arguments.document_length));
  }
  auto [config, vocabulary] = load_planned_config(of_config);
  if (arguments.machine.num_ranks > 0) {
    config = scaled_to_ranks(std::move(config), arguments.machine.num_ranks);
  }
  config = with_stack_overlap(arguments.machine, std::move(config));
  const auto model = with_links_of_run(
      cost_model_of(arguments.machine, static_cast<int>(config.parallel.ranks)), config.links);
  const RunSpec chosen = settings_for(arguments.machine, std::move(config), vocabulary, *model,
                                      console, arguments.json);
  if (!arguments.save_config.empty()) {
    write_file_atomically(arguments.save_config, to_toml(chosen.config));
  }
  const SimulatedRun simulated(chosen, *model, {.contention = !arguments.no_contention});
  std::optional<SkewedStep> skewed;
  if (const std::optional<RoutingLoads> loads = routing_loads(arguments.routing, chosen)) {
    skewed = {.loads = *loads, .step_ns = simulated.step_ns_with_load(loads->busiest)};
  }
  const std::optional<GoodputForecast> goodput = goodput_forecast(arguments.failures, simulated);
  const std::vector<int> ranks =
      arguments.trace_ranks.empty() ? ranks_to_show(simulated) : arguments.trace_ranks;
  if (!arguments.trace.empty()) {
    const Timeline timeline = simulated.timeline(ranks);
    write_chrome_trace(arguments.trace, {&timeline, 1});
  }
  std::string text = arguments.json
                         ? simulation_json(simulated, skewed, goodput)
                         : describe_simulation(simulated) + describe_overlap(simulated, ranks);
  if (skewed && !arguments.json) {
    text += describe_skewed_step(chosen, skewed->loads, simulated.step_ns(), skewed->step_ns);
  }
  if (goodput && !arguments.json) {
    text += describe_goodput(*goodput);
  }
  if (!arguments.report.empty()) {
    const std::string page = write_simulated_report(arguments.report, simulated, ranks);
    text += arguments.json ? "" : "report    " + page + "\n";
  }
  console.print(text);
}

}  // namespace

void add_simulate_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* command = app.add_subcommand(
      "simulate", "Simulate a step of all ranks: tokens/s, MFU, bubble, exposed communication");
  add_config_arguments(*command, arguments->config);
  add_machine_options(*command, arguments->machine);
  command
      ->add_option("--stack", arguments->machine.stack,
                   "With --cluster: the software to simulate instead of braid: megatron-2021, "
                   "megatron-te, fsdp2-compiled, eager, or the path of a file (docs/stacks.md). It "
                   "also sets overlap.mode")
      ->type_name("STACK");
  add_routing_options(*command, arguments->routing);
  add_failure_options(*command, arguments->failures);
  command
      ->add_option("--ranks", arguments->machine.num_ranks,
                   "Simulate this many ranks instead of parallel.ranks: the data dimension and "
                   "train.global_batch grow, tensor, context and pipeline stay, and the cluster "
                   "gets as many nodes as it needs")
      ->type_name("N")
      ->check(between(1, kMaxClusterDevices));
  command
      ->add_option("--trace", arguments->trace,
                   "Write a timeline for Perfetto (ui.perfetto.dev) or chrome://tracing")
      ->type_name("FILE");
  command
      ->add_option("--report", arguments->report,
                   "Write a run folder: report.html, and the files that `braid report FOLDER "
                   "--compare OTHER` needs to compare it with another run, simulated or measured")
      ->type_name("FOLDER");
  command
      ->add_option(
          "--trace-ranks", arguments->trace_ranks,
          "Ranks whose timelines are shown and whose communication is explained, like 0,8 "
          "(default: the first of each pipeline stage, at most as many as a page can hold)")
      ->type_name("RANKS")
      ->delimiter(',')
      ->check(at_least(0));
  command
      ->add_option("--document-length", arguments->document_length,
                   "Mean tokens of a document, by which attention is priced in a run with "
                   "data.document_mask; the same as --set data.document_length=N")
      ->type_name("N")
      ->check(at_least(1));
  command->add_flag("--no-contention", arguments->no_contention,
                    "Let no task slow another; the difference is what contention costs");
  command
      ->add_option(
          "--save-config", arguments->save_config,
          "Write the simulated run file with every key, including what --auto-overlap found")
      ->type_name("FILE");
  command->add_flag("--json", arguments->json, "Print a JSON object instead of text");
  command->footer(
      "Needs no data and no device. docs/simulator.md has the model, its formulas and limits.\n\n"
      "  braid simulate run.toml --cluster h200x8\n"
      "  braid simulate run.toml --cluster h200x8 --auto-overlap --save-config found.toml\n"
      "  braid simulate run.toml --cluster h200x8 --ranks 1024 --json\n"
      "  braid simulate run.toml --cluster h100x64 --stack megatron-te\n"
      "  braid simulate run.toml --cluster h100x64 --failures 50000 --save-seconds 20\n"
      "  braid simulate run.toml --cluster h100x64 --trace step.json --trace-ranks 0,8\n"
      "  braid simulate run.toml --cluster h200x8 --report runs/on\n"
      "  braid simulate run.toml --cluster h200x8 --report runs/off --set overlap.mode=off\n"
      "  braid report runs/off --compare runs/on");
  command->callback([arguments, &console] { run(*arguments, console); });
}

}  // namespace braid
