#pragma once

#include "cli/commands.h"

namespace braid {

/// Adds the run file, `--set` and `--help-config` to a command. `arguments` must outlive the
/// parsing.
void add_config_arguments(CLI::App& command, ConfigArguments& arguments);

}  // namespace braid
