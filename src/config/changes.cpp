#include "config/changes.h"

#include <fmt/core.h>

#include <optional>

#include "config/value.h"

namespace braid {
namespace {

constexpr size_t kShownBytes = 200;

std::string shown(const std::optional<ConfigValue>& value) {
  return value ? to_text(*value, kShownBytes) : "not given";
}

}  // namespace

std::vector<KeyChange> changed_keys(const RunConfig& before, const RunConfig& after) {
  std::vector<KeyChange> changes;
  for (const Field& field : config_fields()) {
    const std::optional<ConfigValue> old_value = value_of(field, before);
    const std::optional<ConfigValue> new_value = value_of(field, after);
    if (old_value != new_value) {
      changes.push_back({&field, shown(old_value), shown(new_value)});
    }
  }
  return changes;
}

std::string to_text(const KeyChange& change) {
  return fmt::format("{} = {} -> {}", full_name(*change.field), change.before, change.after);
}

}  // namespace braid
