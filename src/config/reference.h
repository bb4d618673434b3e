#pragma once

#include <string>

#include "config/run_config.h"

namespace braid {

/// The configuration as a run file with every key. Keys that are not given are comments, and so are
/// the values that overlap.mode = "auto" uses instead of keys of mode = "manual". `parse_config`
/// reads the same configuration back.
std::string to_toml(const RunConfig& config);

/// Every key with type, default, limits and meaning, as Markdown: the whole of
/// docs/configuration.md.
std::string config_reference();

/// The same for a terminal: one key per line, its meaning indented below.
std::string config_help();

}  // namespace braid
