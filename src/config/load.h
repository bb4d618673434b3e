#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "config/run_config.h"

namespace braid {

/// Reads a run file. `overrides` are the values of `--set`, each "section.key=value", applied in
/// order after the file. The value is TOML, or bare text if the key is a string or a list
/// ("model.preset=llama-1b", "logging.trace_steps=3,4"). `logging.run_folder` defaults to
/// "runs/<file name without extension>". Checks each key alone; `validate` (config/validate.h)
/// checks keys against each other. Throws ConfigError: one line with file and line (or the
/// override), key, value and what is allowed instead; ConfigMistakes (config/mistakes.h) with one
/// for each of several mistakes of file and overrides.
RunConfig load_config(const std::filesystem::path& path,
                      std::span<const std::string> overrides = {});

/// The same from text; errors name `source_name` instead of a file. Sets no defaults.
RunConfig parse_config(std::string_view text, std::string_view source_name,
                       std::span<const std::string> overrides = {});

}  // namespace braid
