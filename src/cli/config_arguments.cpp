#include "cli/config_arguments.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "config/load.h"
#include "config/reference.h"
#include "config/validate.h"
#include "data/tokenizer.h"

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
  // What CLI11 calls a version flag is a flag that prints a text and ends, whatever else is
  // missing.
  command.set_version_flag("--help-config", config_help,
                           "Explain every key of a run file and exit");
}

int64_t tokenizer_vocabulary(const RunConfig& config) {
  const bool has_vocabulary =
      !config.model.preset.empty() || config.model.vocabulary.value_or(0) > 0;
  return has_vocabulary ? 0 : load_tokenizer(config.data.tokenizer)->vocabulary_size();
}

PlannedConfig load_planned_config(const ConfigArguments& arguments) {
  RunConfig config = load_config(arguments.path, arguments.overrides);
  validate(config);
  config = resolved(std::move(config));
  const int64_t vocabulary = tokenizer_vocabulary(config);
  return {.config = std::move(config), .tokenizer_vocabulary = vocabulary};
}

}  // namespace braid
