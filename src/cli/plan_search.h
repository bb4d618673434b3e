#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace braid {

/// Arguments of `braid plan --search` besides the run file.
struct PlanSearchArguments {
  bool search = false;
  std::string cluster;
  std::string profile;
  int64_t num_ranks = 0;  ///< 0: those of the cluster; with a profile, parallel.ranks
  std::vector<std::string> fixed;
  std::vector<std::string> varied;
  int64_t top = 10;
  int64_t num_simulated = 40;
  int64_t max_tensor = 0;
  int64_t max_context = 0;
  int64_t max_microbatch = 16;
  int64_t threads = 0;
  bool json = false;
  std::string save_best;
};

/// Adds --search and its options, all of which need it. `arguments` must outlive the parsing.
void add_search_options(CLI::App& command, PlanSearchArguments& arguments);

/// Searches, prints the table, and saves the best layout if requested. `device_memory_bytes` 0: the
/// memory of the cluster's device.
void run_plan_search(const ConfigArguments& config_arguments, const PlanSearchArguments& arguments,
                     int64_t device_memory_bytes, const Console& console);

}  // namespace braid
