#include "cli/simulated_machine.h"

#include <CLI/CLI.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "plan/device_cost.h"
#include "plan/row_exchange_setup.h"
#include "plan/run_spec.h"
#include "runtime/choose_settings.h"
#include "runtime/memory_check.h"
#include "sim/analytic_model.h"
#include "sim/device_file.h"
#include "sim/measured_model.h"
#include "tune/overlap_axes.h"

namespace braid {
namespace {

/// The named cluster under the named software; with --ranks, with as many more nodes as the ranks
/// need.
Cluster cluster_of(const SimulatedMachine& machine, int num_ranks) {
  Cluster cluster = parse_cluster(machine.cluster);
  if (machine.num_ranks != 0 && num_ranks > cluster.num_devices) {
    cluster = cluster_for_ranks(cluster, num_ranks);
  }
  if (!machine.stack.empty()) {
    cluster.device = with_stack(cluster.device, machine.stack);
  }
  return cluster;
}

/// The value of overlap.cost for the simulated machine.
std::string cost_name(const SimulatedMachine& machine, int num_ranks) {
  return machine.profile.empty() ? cluster_of(machine, num_ranks).name : machine.profile;
}

}  // namespace

void add_machine_options(CLI::App& command, SimulatedMachine& machine) {
  command
      .add_option("--cluster", machine.cluster,
                  "Devices and their number, like h200x8 or h100x1024 in nodes of 8, or h100x16:4 "
                  "in nodes of 4; costs come from data sheets. Your own: the path of a device file "
                  "for the name, like my.tomlx64 (docs/hardware.md)")
      ->type_name("CLUSTER");
  command
      .add_option("--profile", machine.profile,
                  "Instead of --cluster: a profile of `braid calibrate`, for as many devices as "
                  "there are ranks")
      ->type_name("FILE");
  command.add_flag("--auto-overlap", machine.auto_overlap,
                   "Search for the fastest overlap that fits the memory of the simulated machine, "
                   "as overlap.mode = \"auto\" with overlap.cost does. This replaces the overlap "
                   "of a run file with another mode");
}

std::unique_ptr<CostModel> cost_model_of(const SimulatedMachine& machine, int num_ranks) {
  if (machine.cluster.empty() == machine.profile.empty()) {
    throw_config_error(
        "the simulation needs a machine: give --cluster (h200x8, h100x1024) or --profile (a file "
        "of `braid calibrate`), not both");
  }
  if (!machine.profile.empty() && !machine.stack.empty()) {
    throw_config_error(
        "--stack {}: a profile has braid's measured costs; give --cluster instead of --profile",
        machine.stack);
  }
  if (!machine.profile.empty()) {
    return make_measured_model(load_profile(machine.profile), num_ranks);
  }
  const Cluster cluster = cluster_of(machine, num_ranks);
  if (cluster.num_devices < num_ranks) {
    throw_config_error("cluster {} has {} devices and parallel.ranks is {}; use {}", cluster.name,
                       cluster.num_devices, num_ranks, cluster_for_ranks(cluster, num_ranks).name);
  }
  return make_analytic_model(cluster);
}

RunConfig with_stack_overlap(const SimulatedMachine& machine, RunConfig config) {
  if (!machine.stack.empty()) {
    config = with_exact_exchange(std::move(config));
    config.overlap.mode = with_stack({}, machine.stack).stack.overlap;
  }
  return config;
}

RunSpec settings_for(const SimulatedMachine& machine, RunConfig config, int64_t vocabulary,
                     const CostModel& model, const Console& console, bool quiet) {
  ChooseOverlapOptions options;
  if (!quiet) {
    options.print = [&console](std::string_view text) { console.print_or_redraw(text); };
    options.progress_bar = console.is_terminal();
  }
  config = with_exchange(std::move(config), model.cluster());
  const std::string cost = cost_name(machine, static_cast<int>(config.parallel.ranks));
  if (config.overlap.cost == kDeviceCost) {
    config.overlap.cost = cost;
  }
  if (machine.auto_overlap) {
    config.overlap = searched_overlap(config);
    config.overlap.cost = cost;
    options.model = &model;
  }
  const std::optional<GpuMemory> gpu = memory_of(model.cluster().device);
  return choose_settings(
      resolve_run(config, vocabulary),
      gpu ? std::optional(RunMemory{.gpu = gpu, .host_bytes = std::nullopt}) : std::nullopt,
      options);
}

}  // namespace braid
