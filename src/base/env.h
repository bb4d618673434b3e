#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// An environment variable that braid reads. Such variables only observe or disable; only the
/// configuration decides what a run computes. docs/env.md lists the same table.
struct EnvVariable {
  std::string_view name;
  std::string_view value;  // allowed values, for documentation
  std::string_view doc;
};

/// Every variable that braid reads, in the order of docs/env.md.
std::span<const EnvVariable> env_variables();

/// Values of the debug variables. Unset or empty variables keep the defaults.
struct DebugOptions {
  std::string dump_program_folder;  // BRAID_DUMP_PROGRAM; empty: dump nothing
  std::vector<std::string>
      disabled_passes;         // BRAID_DISABLE_PASSES; names are checked by the pass runner
  std::optional<bool> verify;  // BRAID_VERIFY; nullopt: the caller decides
  std::optional<bool> trace;   // BRAID_TRACE; nullopt: as the configuration says
  bool sync_tasks = false;     // BRAID_SYNC_TASKS
};

/// Looks a variable up; nullopt if it is not set.
using EnvLookup = std::function<std::optional<std::string>(std::string_view name)>;

/// The environment of this process. Not safe while another thread changes the environment: braid
/// does so once, before it looks for GPUs (backends/cuda/hardware_queues.h).
EnvLookup process_environment();

/// Throws ConfigError naming variable, value and allowed values.
DebugOptions read_debug_options(const EnvLookup& lookup = process_environment());

}  // namespace braid
