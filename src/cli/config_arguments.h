#pragma once

#include <cstdint>

#include "cli/commands.h"
#include "config/run_config.h"

namespace braid {

/// Adds the run file, `--set` and `--help-config` to a command. `arguments` must outlive the
/// parsing.
void add_config_arguments(CLI::App& command, ConfigArguments& arguments);

/// A run as it would be planned, and the size of its tokenizer's vocabulary.
struct PlannedConfig {
  RunConfig config;  ///< validated and resolved
  int64_t tokenizer_vocabulary = 0;
};

/// The size of the tokenizer's vocabulary; 0 where preset or key gives the model's. Throws
/// ConfigError and DataError for its file.
int64_t tokenizer_vocabulary(const RunConfig& config);

/// Loads the run file. Opens the tokenizer only where neither preset nor key gives the size of the
/// vocabulary. Throws ConfigError, and DataError for the files.
PlannedConfig load_planned_config(const ConfigArguments& arguments);

}  // namespace braid
