#include "config/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "base/toml.h"
#include "config/mistakes.h"
#include "config/suggest.h"
#include "config/value.h"

namespace braid {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr size_t kShownBytes = 60;

/// `section.key = node`, as found in a document. An unknown section has no key.
struct Assignment {
  int64_t line;
  std::string section;
  std::string key;
  const toml::node* node;
};

// ---- How names and values stand in errors.

/// A name as shown in an error: unchanged if the message stays one readable line.
std::string shown_name(std::string_view name) {
  return is_printable(name) && name.size() <= kShownBytes ? std::string(name)
                                                          : quote(name, kShownBytes);
}

std::string shown(const toml::node& node) {
  if (node.is_table()) {
    return "a table";
  }
  if (node.is_array()) {
    return "an array";
  }
  if (const auto text = node.value_exact<std::string>()) {
    return quote(*text, kShownBytes);
  }
  if (const auto number = node.value_exact<double>()) {
    return to_text(*number);
  }
  std::ostringstream stream;
  node.visit([&](const auto& inner) { stream << inner; });
  return stream.str();
}

// ---- From TOML nodes to values.

struct Convert {
  const toml::node& node;
  using Result = std::optional<ConfigValue>;

  Result operator()(bool) const { return exact<bool>(); }
  Result operator()(int64_t) const { return exact<int64_t>(); }
  Result operator()(const std::string&) const { return exact<std::string>(); }
  Result operator()(double) const {
    const auto integer = node.value_exact<int64_t>();
    return integer ? Result(static_cast<double>(*integer)) : exact<double>();
  }
  template <class T>
  Result operator()(const std::vector<T>&) const {
    const toml::array* array = node.as_array();
    if (array == nullptr) {
      return std::nullopt;
    }
    std::vector<T> values;
    for (const toml::node& entry : *array) {
      const auto value = entry.value_exact<T>();
      if (!value) {
        return std::nullopt;
      }
      values.push_back(*value);
    }
    return values;
  }
  template <class T>
  Result exact() const {
    const auto value = node.value_exact<T>();
    return value ? Result(*value) : std::nullopt;
  }
};

std::optional<ConfigValue> convert(const toml::node& node, const Field& field) {
  const auto former = field.former ? node.value_exact<bool>() : std::nullopt;
  if (former) {
    return std::string(*former ? field.former->when_true : field.former->when_false);
  }
  return std::visit(Convert{node}, empty_value(field));
}

/// The likely correction, if it can be guessed: 1e3 or "5" for an integer, 5 for a string.
std::string type_hint(const toml::node& node, const Field& field) {
  const ConfigValue wanted = empty_value(field);
  const auto number = node.value_exact<double>();
  if (std::holds_alternative<int64_t>(wanted) && number && *number == std::floor(*number) &&
      std::abs(*number) < 1e15) {
    return fmt::format("; write {:.0f}", *number);
  }
  if (std::holds_alternative<std::string>(wanted) && node.is_value()) {
    return fmt::format("; write it in quotes: \"{}\"", shown(node));
  }
  return {};
}

[[noreturn]] void throw_wrong_type(std::string_view where, const Field& field,
                                   std::string_view value, std::string_view hint) {
  throw_config_error("{}: {} = {}: expected {}{}", where, full_name(field), value,
                     type_name(empty_value(field)), hint);
}

void store(std::string_view where, const Field& field, const ConfigValue& value,
           RunConfig& config) {
  if (const auto broken = broken_limit(field, value)) {
    throw_config_error("{}: {} = {}: {}", where, full_name(field), to_text(value, kShownBytes),
                       *broken);
  }
  set_value(field, config, value);
}

// ---- Documents.

[[noreturn]] void throw_syntax_error(std::string_view text, std::string_view source,
                                     const toml::parse_error& error) {
  const auto line = static_cast<int64_t>(error.source().begin.line);
  std::istringstream lines{std::string(text)};
  std::string content;
  for (int64_t i = 0; i < line; ++i) {
    std::getline(lines, content);
  }
  const std::string what(error.description());
  throw_config_error("{}:{}: not valid TOML in {}: {}", source, line,
                     quote(trim(content), kShownBytes), is_printable(what) ? what : quote(what));
}

int64_t line_of(const toml::node& node) {
  return static_cast<int64_t>(node.source().begin.line);
}

/// All assignments of a document in the order of its lines, which is that of its mistakes.
std::vector<Assignment> assignments_of(const toml::table& document) {
  std::vector<Assignment> result;
  for (const auto& [name, node] : document) {
    const std::string section(name.str());
    if (!node.is_table()) {
      result.push_back({line_of(node), "", section, &node});
    } else if (!is_section(section)) {
      result.push_back({line_of(node), section, "", &node});
    } else {
      for (const auto& [key, value] : *node.as_table()) {
        result.push_back({line_of(value), section, std::string(key.str()), &value});
      }
    }
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const Assignment& a, const Assignment& b) { return a.line < b.line; });
  return result;
}

[[noreturn]] void throw_outside_section(std::string_view where, const Assignment& assignment) {
  const std::string name = shown_name(assignment.key);
  if (is_section(assignment.key)) {
    throw_config_error("{}: {} = {}: expected a section; write [{}] and its keys below", where,
                       name, shown(*assignment.node), name);
  }
  throw_config_error("{}: {} = {} is in no section; {}", where, name, shown(*assignment.node),
                     suggest_key_without_section(assignment.key));
}

void apply(const Assignment& assignment, std::string_view source, RunConfig& config) {
  const std::string where = fmt::format("{}:{}", source, assignment.line);
  if (assignment.section.empty() && !assignment.key.empty()) {
    throw_outside_section(where, assignment);
  }
  if (!is_section(assignment.section)) {
    throw_config_error("{}: unknown section [{}]; {}", where, shown_name(assignment.section),
                       suggest_section(assignment.section));
  }
  const Field* field = find_field(assignment.section, assignment.key);
  if (field == nullptr) {
    throw_config_error("{}: unknown key {}.{} = {}; {}", where, assignment.section,
                       shown_name(assignment.key), shown(*assignment.node),
                       suggest_key(assignment.section, assignment.key));
  }
  const std::optional<ConfigValue> value = convert(*assignment.node, *field);
  if (!value) {
    throw_wrong_type(where, *field, shown(*assignment.node), type_hint(*assignment.node, *field));
  }
  store(where, *field, *value, config);
}

void apply_all(const std::vector<Assignment>& assignments, std::string_view source,
               RunConfig& config) {
  Mistakes mistakes;
  for (const Assignment& assignment : assignments) {
    mistakes.check([&] { apply(assignment, source, config); });
  }
  mistakes.throw_if_any();
}

void apply_document(std::string_view text, std::string_view source, RunConfig& config) {
  check_toml_dots(text, source);
  try {
    const toml::table document = toml::parse(text, source);
    apply_all(assignments_of(document), source, config);
  } catch (const toml::parse_error& error) {
    throw_syntax_error(text, source, error);
  }
}

// ---- Overrides.

/// The document `v = text`, if that is TOML and sets nothing else.
std::optional<toml::table> parse_value(std::string_view text) {
  const bool nests_too_deep = std::count(text.begin(), text.end(), '.') > kMaxDotsPerLine;
  if (nests_too_deep) {
    return std::nullopt;
  }
  try {
    toml::table document = toml::parse(fmt::format("v = {}", text));
    return document.size() == 1 ? std::optional(std::move(document)) : std::nullopt;
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

/// The meaning of `text` for keys that may be given without TOML's quotes and brackets; nullopt if
/// there is none.
struct BareValue {
  std::string_view text;
  using Result = std::optional<ConfigValue>;

  Result operator()(const std::string&) const {
    const bool broken_quotes = !text.empty() && (text[0] == '"' || text[0] == '\'');
    return broken_quotes ? Result() : Result(std::string(text));
  }
  Result operator()(const std::vector<std::string>&) const {
    const bool broken_list = !text.empty() && (text[0] == '[' || text[0] == '"');
    return broken_list ? Result() : Result(split_text(text, ','));
  }
  Result operator()(const std::vector<int64_t>& empty) const {
    const std::optional<toml::table> document = parse_value(fmt::format("[{}]", text));
    return document ? Convert{*document->get("v")}(empty) : Result();
  }
  template <class T>
  Result operator()(const T&) const {
    return std::nullopt;
  }
};

ConfigValue override_value(std::string_view where, const Field& field, std::string_view text) {
  const std::optional<toml::table> document = parse_value(text);
  const toml::node* node = document ? document->get("v") : nullptr;
  if (node != nullptr) {
    if (const std::optional<ConfigValue> value = convert(*node, field)) {
      return *value;
    }
  }
  if (const std::optional<ConfigValue> value = std::visit(BareValue{text}, empty_value(field))) {
    return *value;
  }
  throw_wrong_type(where, field, node != nullptr ? shown(*node) : quote(text, kShownBytes),
                   node != nullptr ? type_hint(*node, field) : "");
}

void apply_override(std::string_view text, RunConfig& config) {
  constexpr std::string_view kWhere = "--set";
  const size_t equals = text.find('=');
  const std::string_view name = trim(text.substr(0, equals));
  const size_t dot = name.find('.');
  if (equals == std::string_view::npos || dot == std::string_view::npos) {
    throw_config_error("{} {}: expected section.key=value, such as {} train.steps=100{}", kWhere,
                       quote(text, kShownBytes), kWhere,
                       equals == std::string_view::npos
                           ? ""
                           : fmt::format("; {}", suggest_key_without_section(name)));
  }
  const std::string_view section = name.substr(0, dot);
  const std::string_view key = name.substr(dot + 1);
  if (!is_section(section)) {
    throw_config_error("{} {}: unknown section {}; {}", kWhere, quote(text, kShownBytes),
                       shown_name(section), suggest_section(section));
  }
  const Field* field = find_field(section, key);
  if (field == nullptr) {
    throw_config_error("{} {}: unknown key {}.{}; {}", kWhere, quote(text, kShownBytes), section,
                       shown_name(key), suggest_key(section, key));
  }
  store(kWhere, *field, override_value(kWhere, *field, trim(text.substr(equals + 1))), config);
}

std::string read_config_file(const std::string& path) {
  try {
    return read_text_file(path, kMaxFileBytes);
  } catch (const DataError& error) {
    throw ConfigError(error.what());
  }
}

}  // namespace

RunConfig parse_config(std::string_view text, std::string_view source_name,
                       std::span<const std::string> overrides) {
  RunConfig config;
  Mistakes mistakes;
  mistakes.check([&] { apply_document(text, source_name, config); });
  for (const std::string& override_text : overrides) {
    mistakes.check([&] { apply_override(override_text, config); });
  }
  mistakes.throw_if_any();
  return config;
}

RunConfig load_config(const std::filesystem::path& path, std::span<const std::string> overrides) {
  RunConfig config = parse_config(read_config_file(path.string()), path.string(), overrides);
  if (config.logging.run_folder.empty()) {
    config.logging.run_folder = "runs/" + path.stem().string();
  }
  return config;
}

}  // namespace braid
