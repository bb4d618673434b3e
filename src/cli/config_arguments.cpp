#include "cli/config_arguments.h"

#include <CLI/CLI.hpp>

#include "config/reference.h"

namespace braid {

void add_config_arguments(CLI::App& command, ConfigArguments& arguments) {
  command.add_option("config", arguments.path, "Run file (TOML); --help-config explains its keys")
      ->required()
      ->type_name("FILE");
  command
      .add_option("--set", arguments.overrides,
                  "Override a key: section.key=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  // A CLI11 version flag prints a text and exits, even if other arguments are missing.
  command.set_version_flag("--help-config", config_help,
                           "Explain every key of a run file and exit");
}

PlannedConfig load_planned_config(const ConfigArguments& arguments) {
  return load_planned_config(arguments.path, arguments.overrides);
}

}  // namespace braid
