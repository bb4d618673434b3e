#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "cli/simulated_machine.h"
#include "cli/validators.h"
#include "emulate/describe_emulation.h"
#include "emulate/emulation_report.h"
#include "emulate/rank_emulation.h"
#include "plan/describe_layout.h"
#include "plan/emulated_peers.h"
#include "plan/run_costs.h"
#include "plan/simulated_report.h"
#include "plan/simulated_run.h"
#include "runtime/engine.h"
#include "trace/chrome_trace.h"

namespace braid {
namespace {

struct EmulateArguments {
  ConfigArguments config;
  SimulatedMachine machine;
  int rank = 0;
  int64_t steps = 5;
  bool no_waits = false;
  bool copies = false;
  std::string trace;
  std::string report;
  bool json = false;
};

/// A device of this machine for one rank.
Device device_of(RunConfig config) {
  const FoundGpus gpus = gpus_for(config);
  config.parallel.ranks = 1;
  config.runtime.ranks_per_gpu = 1;
  return choose_device(config, gpus);
}

std::string describe_place(const EmulateArguments& arguments, const Device& device,
                           const SimulatedRun& run) {
  return fmt::format("emulated  rank {} of {} on {}; the simulator stands for the others{} ({})\n",
                     arguments.rank, run.spec().mesh.num_ranks(),
                     device.gpu ? "the " + device.gpu->name : "the CPU",
                     arguments.no_waits ? ", and never late" : "", run.model().description());
}

/// What the emulation of a rank of GPUs on a CPU is good for.
std::string limits_on_cpu(const std::string& gpu) {
  return fmt::format(
      "measured times are those of this CPU, simulated ones those of {}: their differences say "
      "nothing about either. The CPU shows that the rank's program runs in the planned memory; it "
      "cannot tell the time of a step or of an op, the exposed communication, or the memory of the "
      "driver on {}",
      gpu, gpu);
}

void run(const EmulateArguments& arguments, const Console& console) {
  if (!arguments.report.empty()) {
    prepare_report_folder(arguments.report);  // before any slow work
  }
  auto [config, vocabulary] = load_planned_config(arguments.config);
  const Device device = device_of(config);
  const auto model = with_links_of_run(
      cost_model_of(arguments.machine, static_cast<int>(config.parallel.ranks)), config.links);
  SimulatedRun simulated(settings_for(arguments.machine, std::move(config), vocabulary, *model,
                                      console, arguments.json),
                         *model, {.starts_on_arrival = !arguments.no_waits},
                         PlannedRanks::kEveryPlaceInFull);
  const RunSpec& chosen = simulated.spec();
  EmulatedPeers peers = emulated_peers(simulated, arguments.rank);
  if (const auto load = emulated_load(simulated.plan(), arguments.rank)) {
    simulated.set_routed_load(load->mean);
    peers = emulated_peers(simulated, arguments.rank);
  }
  if (!arguments.copies) {
    peers.anew_bytes = kSmallResultBytes;
    peers.anew_gathered_bytes = kSmallGatheredBytes;
  }
  if (!arguments.json) {
    console.print(describe_layout(chosen) + describe_place(arguments, device, simulated));
  }
  RankEmulation emulation =
      emulate_rank(simulated.plan(), arguments.rank, peers,
                   {.device = device,
                    .cache_folder = user_cache_folder(),
                    .threads = threads_per_rank(chosen.config.runtime.threads, 1),
                    .steps = arguments.steps});
  if (!device.gpu && !model->cluster().device.is_host) {
    emulation.notes.push_back(limits_on_cpu(model->cluster().device.description));
  }
  if (!arguments.trace.empty()) {
    write_chrome_trace(arguments.trace, {&emulation.timeline, 1});
  }
  std::string text = arguments.json ? emulation_json(emulation, simulated)
                                    : describe_emulation(emulation, simulated);
  if (!arguments.report.empty()) {
    const std::string page = write_emulation_report(arguments.report, emulation, simulated);
    text += arguments.json ? "" : "report    " + page + "\n";
  }
  console.print(text);
}

}  // namespace

void add_emulate_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<EmulateArguments>();
  CLI::App* command = app.add_subcommand("emulate",
                                         "Run one rank at full size on this machine and simulate "
                                         "the others: measured and simulated step, memory");
  add_config_arguments(*command, arguments->config);
  add_machine_options(*command, arguments->machine);
  command
      ->add_option(
          "--rank", arguments->rank,
          "The rank to run; of ranks that differ only in their part of the data, the first")
      ->type_name("R")
      ->check(at_least(0))
      ->capture_default_str();
  command
      ->add_option("--steps", arguments->steps, "Number of timed steps, after three untimed ones")
      ->check(between(1, 10'000))
      ->capture_default_str();
  command->add_flag("--no-waits", arguments->no_waits,
                    "Assume that other ranks are never late: communication takes only as long as "
                    "bytes move, and a pipeline has no bubble");
  command->add_flag("--copies", arguments->copies,
                    "Make the data of the other ranks in every step, by copies within the device, "
                    "instead of once. This uses exactly the memory of the run, but products slow "
                    "such copies far more than they slow pushes of peers");
  command
      ->add_option("--trace", arguments->trace,
                   "Write the timeline of the traced step for Perfetto (ui.perfetto.dev) or "
                   "chrome://tracing")
      ->type_name("FILE");
  command
      ->add_option("--report", arguments->report,
                   "Write a run folder: report.html, with the measured step beside the simulated "
                   "one, and the files that `braid report FOLDER --compare OTHER` needs")
      ->type_name("FOLDER");
  command->add_flag("--json", arguments->json, "Print a JSON object instead of text");
  command->footer(
      "Kernels and overlap are real. Communication takes as long as in the simulation and delivers "
      "made-up numbers,\nwhich are made once and kept in separate memory. Needs no data. "
      "docs/simulator.md has the limits.\n\n  braid emulate run.toml --cluster h200x8\n  braid "
      "emulate run.toml --cluster h200x64 --auto-overlap --rank 8\n  braid emulate run.toml "
      "--profile my.json --no-waits --trace rank0.json\n  braid emulate run.toml --cluster h200x8 "
      "--report runs/rank0");
  command->callback([arguments, &console] { run(*arguments, console); });
}

}  // namespace braid
