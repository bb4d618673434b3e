#include "cli/config_arguments.h"

#include <CLI/CLI.hpp>

#include "config/reference.h"

namespace braid {

void add_config_arguments(CLI::App& command, ConfigArguments& arguments) {
  command.add_option("config", arguments.path, "Run file (TOML); see --help-config for its keys")
      ->required();
  command
      .add_option("--set", arguments.overrides,
                  "Override a key: section.key=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_flag_callback(
      "--help-config", [] { throw CLI::CallForHelp(config_help(), 0); },
      "Explain every key of a run file, and exit");
}

}  // namespace braid
