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
#include "tune/find_gains.h"

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
  int64_t samples = 0;
  uint64_t seed = 0;
  SlowParts slow;
  bool why = false;
  bool no_contention = false;
  bool json = false;
  std::string save_config;
};

SimulationDetails details_of(const SimulateArguments& arguments, const SimulatedRun& simulated) {
  SimulationDetails details{.range = step_range(simulated)};
  if (arguments.samples > 0) {
    details.samples = sample_steps(simulated, arguments.samples, arguments.seed);
  }
  if (arguments.slow.node != 1 || arguments.slow.link != 1) {
    details.slow = {.parts = arguments.slow, .step_ns = step_ns_with(simulated, arguments.slow)};
  }
  if (const auto loads = routing_loads(arguments.routing, simulated.spec())) {
    details.skewed = {.loads = *loads, .step_ns = simulated.step_ns_with_load(loads->busiest)};
  }
  details.goodput = goodput_forecast(arguments.failures, simulated);
  if (arguments.why) {
    details.gains = find_gains(simulated);
  }
  details.path = details.gains ? details.gains->path : step_path(simulated);
  return details;
}

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
  const SimulationDetails details = details_of(arguments, simulated);
  const std::vector<int> ranks =
      arguments.trace_ranks.empty() ? ranks_to_show(simulated) : arguments.trace_ranks;
  if (!arguments.trace.empty()) {
    const Timeline timeline = simulated.timeline(ranks);
    write_chrome_trace(arguments.trace, {&timeline, 1});
  }
  std::string text =
      arguments.json ? simulation_json(simulated, details)
                     : describe_simulation(simulated, details) + describe_overlap(simulated, ranks);
  if (details.skewed && !arguments.json) {
    text += describe_skewed_step(chosen, details.skewed->loads, simulated.step_ns(),
                                 details.skewed->step_ns);
  }
  if (details.goodput && !arguments.json) {
    text += describe_goodput(*details.goodput);
  }
  if (!arguments.report.empty()) {
    const std::string page = write_simulated_report(arguments.report, simulated, ranks, details);
    text += arguments.json ? "" : "report    " + page + "\n";
  }
  console.print(text);
}

/// Options that ask how far steps may be from the simulated one.
void add_range_options(CLI::App& command, SimulateArguments& arguments) {
  CLI::Option* const samples =
      command
          .add_option(
              "--samples", arguments.samples,
              "Also simulate N steps of machines whose devices, network and steps differ by "
              "chance, as the keys range.* of their files say: median and 90th percentile")
          ->type_name("N")
          ->check(between(1, 100'000));
  command.add_option("--seed", arguments.seed, "For --samples: what chance starts from (0)")
      ->type_name("S")
      ->needs(samples);
  constexpr double kSlowest = 1000;
  command
      .add_option("--slow-node", arguments.slow.node,
                  "Also simulate the step if compute takes FACTOR times as long on the node of the "
                  "busiest rank")
      ->type_name("FACTOR")
      ->check(between(1.0, kSlowest));
  command
      .add_option("--slow-link", arguments.slow.link,
                  "Also simulate the step if communication between that node and others takes "
                  "FACTOR times as long; with one node, communication inside it")
      ->type_name("FACTOR")
      ->check(between(1.0, kSlowest));
}

}  // namespace

void add_simulate_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* command = app.add_subcommand(
      "simulate", "Simulate a step of all ranks: tokens/s, MFU, bubble, exposed communication");
  add_config_arguments(*command, arguments->config);
  add_machine_options(*command, arguments->machine);
  command
      ->add_option(
          "--stack", arguments->machine.stack,
          "With --cluster: the software to simulate instead of braid: megatron-te, "
          "fsdp2-compiled, eager, megatron-2021, megatron-deepspeed, or another name or the "
          "path of a file (docs/stacks.md). It also sets overlap.mode")
      ->type_name("STACK");
  add_range_options(*command, *arguments);
  command->add_flag("--why", arguments->why,
                    "Also say why the step is not faster: what it would gain without each cause of "
                    "its critical path, and of layout, overlap and hardware the change that gains "
                    "most, each simulated");
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
      "  braid simulate run.toml --cluster h100x64 --why\n"
      "  braid simulate run.toml --cluster h100x64 --samples 100 --slow-node 1.2\n"
      "  braid simulate run.toml --cluster h100x64 --failures 50000 --save-seconds 20\n"
      "  braid simulate run.toml --cluster h100x64 --trace step.json --trace-ranks 0,8\n"
      "  braid simulate run.toml --cluster h200x8 --report runs/on\n"
      "  braid simulate run.toml --cluster h200x8 --report runs/off --set overlap.mode=off\n"
      "  braid report runs/off --compare runs/on");
  command->callback([arguments, &console] { run(*arguments, console); });
}

}  // namespace braid
