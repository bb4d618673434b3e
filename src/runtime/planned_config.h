#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "config/run_config.h"

namespace braid {

/// A run ready for planning, and the size of its tokenizer's vocabulary.
struct PlannedConfig {
  RunConfig config;  ///< validated and resolved
  int64_t tokenizer_vocabulary = 0;
};

/// The size of the tokenizer's vocabulary; 0 if preset or key gives the model's. Throws ConfigError
/// and DataError for its file.
int64_t tokenizer_vocabulary(const RunConfig& config);

/// The run, validated and resolved. Opens the tokenizer only if neither preset nor key gives the
/// size of the vocabulary. Throws ConfigError, and DataError for the tokenizer.
PlannedConfig plan_config(RunConfig config);

/// `plan_config` of `load_config`.
PlannedConfig load_planned_config(const std::string& path,
                                  std::span<const std::string> overrides = {});

}  // namespace braid
