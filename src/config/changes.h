#pragma once

#include <string>
#include <vector>

#include "config/fields.h"
#include "config/run_config.h"

namespace braid {

/// A key with another value than before. Values are texts for people: as TOML, cut to one line, or
/// "not given".
struct KeyChange {
  const Field* field = nullptr;
  std::string before;
  std::string after;
};

/// The keys whose values differ, in the order of the table.
std::vector<KeyChange> changed_keys(const RunConfig& before, const RunConfig& after);

/// "train.steps = 100 -> 200"
std::string to_text(const KeyChange& change);

}  // namespace braid
