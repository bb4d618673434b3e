#pragma once

#include <string>

#include "config/run_config.h"

namespace braid {

/// The configuration as a run file with every key; keys that are not given stand as comments, and
/// so does what overlap.mode = "auto" puts in the place of keys of mode = "manual".
/// `parse_config` gives the same configuration back.
std::string to_toml(const RunConfig& config);

/// Every key with type, default, limits and meaning, as Markdown: the whole of
/// docs/configuration.md.
std::string config_reference();

/// The same for a terminal: one key per line, its meaning indented below.
std::string config_help();

}  // namespace braid
