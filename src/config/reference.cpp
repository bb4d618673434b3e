#include "config/reference.h"

#include <fmt/core.h>

#include <array>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "config/overlap_defaults.h"
#include "config/value.h"

namespace braid {
namespace {

constexpr std::string_view kIntroduction =
    "# Configuration\n"
    "\n"
    "`braid train run.toml` reads one TOML file. Every key has a default, and `--set "
    "section.key=value` overrides a key on the\n"
    "command line, as often as needed. braid refuses unknown keys, wrong types and values outside "
    "the limits, then keys\n"
    "that contradict each other, and prints all such mistakes at once, a line each. It prints the "
    "resolved configuration at\n"
    "the start and saves it in the run folder. Paths are relative to the working directory.\n"
    "\n"
    "A resumed run prints each key that has changed, and is refused if a change makes it another "
    "run\n"
    "([checkpoints.md](checkpoints.md)).\n"
    "\n"
    "A test keeps this page equal to the table in `src/config/fields.cpp`.\n"
    "\n"
    "## The ten keys that everyone needs\n"
    "\n"
    "| Key | Default | Meaning |\n"
    "| --- | --- | --- |\n";

constexpr std::string_view kAfterFirstKeys =
    "\n"
    "If the run does not fit in memory, set `memory.recompute = \"auto\"` or `parallel.shard`. "
    "With "
    "several ranks, `[parallel]`\n"
    "says how they share the work; `braid plan run.toml --search` finds a layout. "
    "`overlap.cost` lets braid search for the\n"
    "best overlap. [examples](../examples) has complete run files.\n";

struct KeyName {
  std::string_view section;
  std::string_view name;
};

/// Keys that a first run file sets, in their natural order.
constexpr std::array<KeyName, 10> kFirstKeys = {{{"model", "preset"},
                                                 {"data", "train"},
                                                 {"data", "tokenizer"},
                                                 {"train", "sequence"},
                                                 {"train", "microbatch"},
                                                 {"train", "global_batch"},
                                                 {"train", "steps"},
                                                 {"train", "dtype"},
                                                 {"optimizer", "learning_rate"},
                                                 {"parallel", "ranks"}}};

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

std::string first_keys_text() {
  std::string text;
  for (const KeyName& key : kFirstKeys) {
    const Field* field = find_field(key.section, key.name);
    check(field != nullptr, "there is no key {}.{}", key.section, key.name);
    text += fmt::format("| `{}.{}` | `{}` | {} |\n", key.section, key.name, default_text(*field),
                        field->doc);
  }
  return text;
}

/// Which keys of a section a resumed run may change.
std::string resume_text(const Section& section) {
  constexpr std::array kRules = {
      std::pair{OnResume::kRefused, "are refused"},
      std::pair{OnResume::kByContent, "are refused if the content differs"},
      std::pair{OnResume::kAllowed, "are allowed"},
  };
  std::vector<std::string> parts;
  for (const auto& [rule, meaning] : kRules) {
    std::vector<std::string> names;
    size_t num_keys = 0;
    for (const Field& field : config_fields()) {
      if (field.section == section.name) {
        ++num_keys;
        if (on_resume(field) == rule) {
          names.push_back(fmt::format("`{}`", field.name));
        }
      }
    }
    if (names.size() == num_keys) {
      return fmt::format("changes of its keys {}", meaning);
    }
    if (!names.empty()) {
      parts.push_back(fmt::format("changes of {} {}", join(names, ", "), meaning));
    }
  }
  return join(parts, ", ");
}

/// "# not given: pattern, width", in lines of at most 100 columns; empty for no names.
std::string not_given_text(const std::vector<std::string_view>& names) {
  constexpr size_t kColumns = 100;
  std::string text;
  std::string line;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = fmt::format(" {}{}", names[i], i + 1 < names.size() ? "," : "");
    if (line.empty() || line.size() + name.size() > kColumns) {
      text += line.empty() ? "" : line + "\n";
      line = line.empty() ? "# not given:" : "#  ";
    }
    line += name;
  }
  return line.empty() ? "" : text + line + "\n";
}

}  // namespace

std::string to_toml(const RunConfig& config) {
  RunConfig in_force = config;
  in_force.overlap = overlap_in_force(config);
  std::string text;
  std::vector<std::string_view> not_given;  // in the section so far
  for_each_key(
      [&](const Section& section) {
        text += not_given_text(std::exchange(not_given, {}));
        text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
      },
      [&](const Field& field) {
        const std::optional<ConfigValue> value = value_of(field, config);
        if (!value) {
          not_given.push_back(field.name);
          return;
        }
        text += fmt::format("{} = {}", field.name, to_text(*value));
        if (const std::optional<ConfigValue> other = value_of(field, in_force); other != value) {
          text += fmt::format("  # in force: {}, by mode = \"auto\"", to_text(*other));
        }
        text += "\n";
      });
  return text + not_given_text(not_given);
}

std::string config_reference() {
  std::string text = fmt::format("{}{}{}", kIntroduction, first_keys_text(), kAfterFirstKeys);
  for_each_key(
      [&](const Section& section) {
        text += fmt::format(
            "\n## [{}]\n\n{} When a run resumes, {}.\n\n"
            "| Key | Default | Values | Meaning |\n| --- | --- | --- | --- |\n",
            section.name, section.doc, resume_text(section));
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
