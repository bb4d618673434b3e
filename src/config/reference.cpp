#include "config/reference.h"

#include <fmt/core.h>

#include "base/text.h"
#include "config/overlap_defaults.h"
#include "config/value.h"

namespace braid {
namespace {

constexpr std::string_view kIntroduction =
    "# Configuration\n"
    "\n"
    "`braid train run.toml` reads one TOML file. Every key has a default; `--set "
    "section.key=value` overrides a key on the\n"
    "command line, as often as needed. Unknown keys, wrong types and values outside the limits are "
    "refused. The resolved\n"
    "configuration is printed at the start and saved in the run folder. Paths are relative to the "
    "working directory.\n"
    "\n"
    "This page is made from the table in `src/config/fields.cpp`; a test keeps the two equal.\n";

std::string default_text(const Field& field) {
  const std::optional<ConfigValue> value = value_of(field, RunConfig());
  return value ? to_text(*value) : "not given";
}

/// "integer, 1 to 4096", "string", "one of "a", "b"".
std::string type_text(const Field& field) {
  std::string_view type = type_name(empty_value(field));
  for (const std::string_view article : {"an ", "a "}) {
    type.remove_prefix(type.starts_with(article) ? article.size() : 0);
  }
  const std::string limits = limits_text(field.limits);
  if (!field.limits.allowed.empty()) {
    return limits;
  }
  return limits.empty() ? std::string(type) : fmt::format("{}, {}", type, limits);
}

/// Calls `on_section(section)` and then `on_field(field)` for each of its keys, in order.
template <class OnSection, class OnField>
void for_each_key(OnSection on_section, OnField on_field) {
  for (const Section& section : config_sections()) {
    on_section(section);
    for (const Field& field : config_fields()) {
      if (field.section == section.name) {
        on_field(field);
      }
    }
  }
}

}  // namespace

std::string to_toml(const RunConfig& config) {
  RunConfig in_force = config;
  in_force.overlap = overlap_in_force(config);
  std::string text;
  for_each_key(
      [&](const Section& section) {
        text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
      },
      [&](const Field& field) {
        const std::optional<ConfigValue> value = value_of(field, config);
        text += value ? fmt::format("{} = {}", field.name, to_text(*value))
                      : fmt::format("# {} is not given", field.name);
        if (const std::optional<ConfigValue> other = value_of(field, in_force); other != value) {
          text += fmt::format("  # in force: {}, by mode = \"auto\"", to_text(*other));
        }
        text += "\n";
      });
  return text;
}

std::string config_reference() {
  std::string text(kIntroduction);
  for_each_key(
      [&](const Section& section) {
        text += fmt::format(
            "\n## [{}]\n\n{}\n\n| Key | Default | Values | Meaning |\n| --- | --- | --- | --- |\n",
            section.name, section.doc);
      },
      [&](const Field& field) {
        text += fmt::format("| `{}` | `{}` | {} | {} |\n", field.name, default_text(field),
                            type_text(field), field.doc);
      });
  return text;
}

std::string config_help() {
  std::string text;
  for_each_key(
      [&](const Section& section) {
        text += fmt::format("{}[{}]  {}\n", text.empty() ? "" : "\n", section.name, section.doc);
      },
      [&](const Field& field) {
        text += fmt::format("  {} = {}  ({})\n      {}\n", field.name, default_text(field),
                            type_text(field), field.doc);
      });
  return text;
}

}  // namespace braid
