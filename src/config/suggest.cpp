#include "config/suggest.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/text.h"
#include "config/fields.h"

namespace braid {
namespace {

std::vector<std::string_view> section_names() {
  std::vector<std::string_view> names;
  for (const Section& section : config_sections()) {
    names.push_back(section.name);
  }
  return names;
}

std::vector<std::string_view> key_names(std::string_view section) {
  std::vector<std::string_view> names;
  for (const Field& field : config_fields()) {
    if (field.section == section) {
      names.push_back(field.name);
    }
  }
  return names;
}

/// The key, in any section, that is nearest to this name; nullptr if none is near.
const Field* nearest_field(std::string_view key) {
  std::vector<std::string_view> names;
  for (const Field& field : config_fields()) {
    names.push_back(field.name);
  }
  const std::optional<std::string_view> nearest = nearest_name(key, names);
  for (const Field& field : config_fields()) {
    if (field.name == nearest) {
      return &field;
    }
  }
  return nullptr;
}

}  // namespace

bool is_section(std::string_view name) {
  const std::vector<std::string_view> names = section_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string suggest_section(std::string_view name) {
  const std::vector<std::string_view> names = section_names();
  if (const auto nearest = nearest_name(name, names)) {
    return fmt::format("did you mean [{}]?", *nearest);
  }
  return "sections are " + join(names, ", ");
}

std::string suggest_key(std::string_view section, std::string_view key) {
  const std::vector<std::string_view> names = key_names(section);
  if (const auto nearest = nearest_name(key, names)) {
    return fmt::format("did you mean {}.{}?", section, *nearest);
  }
  if (const Field* elsewhere = nearest_field(key)) {
    return fmt::format("did you mean {}?", full_name(*elsewhere));
  }
  return fmt::format("keys of [{}] are {}", section, join(names, ", "));
}

std::string suggest_key_without_section(std::string_view key) {
  const Field* nearest = nearest_field(key);
  return nearest == nullptr ? suggest_section(key)
                            : fmt::format("did you mean {}?", full_name(*nearest));
}

}  // namespace braid
