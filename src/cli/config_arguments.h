#pragma once

#include "cli/commands.h"
#include "runtime/planned_config.h"

namespace braid {

/// Adds the run file, `--set` and `--help-config` to a command. `arguments` must outlive the
/// parsing.
void add_config_arguments(CLI::App& command, ConfigArguments& arguments);

/// The run file and the overrides of a command.
PlannedConfig load_planned_config(const ConfigArguments& arguments);

}  // namespace braid
