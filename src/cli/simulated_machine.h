#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "config/run_config.h"
#include "plan/run_spec.h"
#include "sim/cost_model.h"

namespace braid {

/// The machine that a command simulates, and how overlap is chosen for it.
struct SimulatedMachine {
  std::string cluster;
  std::string profile;
  std::string stack;      ///< with `cluster`: the software that is simulated; empty: braid
  int64_t num_ranks = 0;  ///< instead of parallel.ranks; 0: as the run file says
  bool auto_overlap = false;
};

/// Adds --cluster, --profile and --auto-overlap. `machine` must outlive the parsing.
void add_machine_options(CLI::App& command, SimulatedMachine& machine);

/// The cost model of the machine, with a device for each rank. Throws ConfigError if none or both
/// of the options are given, the cluster has too few devices or there is no such stack, and
/// DataError for a profile that cannot be read.
std::unique_ptr<CostModel> cost_model_of(const SimulatedMachine& machine, int num_ranks);

/// The run as the stack of --stack runs it: with that stack's overlap.mode, and the exchange of
/// rows of experts of other software.
RunConfig with_stack_overlap(const SimulatedMachine& machine, RunConfig config);

/// Resolves open settings of the run for the simulated device, and chooses overlap with its costs
/// if --auto-overlap is given. `quiet`: prints no progress.
RunSpec settings_for(const SimulatedMachine& machine, RunConfig config, int64_t vocabulary,
                     const CostModel& model, const Console& console, bool quiet);

}  // namespace braid
