#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "config/run_config.h"

namespace braid {

/// Several mistakes of one run file: each has a line of its own, and what() has all of them.
class ConfigMistakes : public ConfigError {
 public:
  explicit ConfigMistakes(std::vector<std::string> mistakes);
  const std::vector<std::string>& mistakes() const { return mistakes_; }

 private:
  std::vector<std::string> mistakes_;
};

/// Reads a run file. `overrides` are the values of `--set`, each "section.key=value", applied in
/// order after the file. The value is TOML, or bare text if the key is a string or a list
/// ("model.preset=llama-1b", "logging.trace_steps=3,4"). `logging.run_folder` defaults to
/// "runs/<file name without extension>". Checks each key alone; `validate` (config/validate.h)
/// checks keys against each other. Throws ConfigError: one line with file and line (or the
/// override), key, value and what is allowed instead; ConfigMistakes if a file has several.
RunConfig load_config(const std::filesystem::path& path,
                      std::span<const std::string> overrides = {});

/// The same from text; errors name `source_name` instead of a file. Sets no defaults.
RunConfig parse_config(std::string_view text, std::string_view source_name,
                       std::span<const std::string> overrides = {});

}  // namespace braid
