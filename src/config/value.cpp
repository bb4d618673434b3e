#include "config/value.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

struct ReadValue {
  template <class T>
  std::optional<ConfigValue> operator()(const T* value) const {
    return ConfigValue(*value);
  }
  template <class T>
  std::optional<ConfigValue> operator()(const std::optional<T>* value) const {
    return *value ? std::optional<ConfigValue>(**value) : std::nullopt;
  }
};

struct EmptyValue {
  template <class T>
  ConfigValue operator()(const T*) const {
    return T();
  }
  template <class T>
  ConfigValue operator()(const std::optional<T>*) const {
    return T();
  }
};

struct SetValue {
  const Field& field;
  const ConfigValue& value;

  template <class T>
  void operator()(T* target) const {
    *target = given<T>();
  }
  template <class T>
  void operator()(std::optional<T>* target) const {
    *target = given<T>();
  }
  template <class T>
  const T& given() const {
    const T* result = std::get_if<T>(&value);
    check(result != nullptr, "{} cannot hold {}", full_name(field), type_name(value));
    return *result;
  }
};

/// Limits are doubles, also those of integers; integers print as such.
std::string number_text(double number) {
  const bool integer = std::abs(number) < 1e15 && number == std::floor(number);
  return integer ? fmt::format("{:.0f}", number) : fmt::format("{}", number);
}

struct BrokenLimit {
  const Limits& limits;
  using Result = std::optional<std::string>;

  Result operator()(bool) const { return std::nullopt; }
  Result operator()(int64_t value) const { return (*this)(static_cast<double>(value)); }
  Result operator()(double value) const {
    if (!std::isfinite(value)) {
      return "must be a finite number";
    }
    if (value < limits.minimum) {
      return "must be at least " + number_text(limits.minimum);
    }
    if (limits.excludes_maximum && value >= limits.maximum) {
      return "must be below " + number_text(limits.maximum);
    }
    return value > limits.maximum ? Result("must be at most " + number_text(limits.maximum))
                                  : std::nullopt;
  }
  Result operator()(const std::string& value) const {
    if (!is_printable(value)) {
      return "must be UTF-8 text without control characters";
    }
    const auto& allowed = limits.allowed;
    if (allowed.empty() || std::find(allowed.begin(), allowed.end(), value) != allowed.end()) {
      return std::nullopt;
    }
    return fmt::format("allowed values are {}{}", limits_text(limits),
                       did_you_mean(value, allowed));
  }
  template <class T>
  Result operator()(const std::vector<T>& values) const {
    for (const T& value : values) {
      if (const Result broken = (*this)(value)) {
        return "each entry " + *broken;
      }
    }
    return std::nullopt;
  }
};

struct ToText {
  size_t max_bytes;

  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const {
    const std::string text = fmt::format("{}", value);  // shortest text that reads back the same
    const bool reads_as_integer = text.find_first_not_of("-0123456789") == std::string::npos;
    return reads_as_integer ? text + ".0" : text;
  }
  std::string operator()(const std::string& value) const { return quote(value, max_bytes); }
  template <class T>
  std::string operator()(const std::vector<T>& values) const {
    std::vector<std::string> parts;
    for (const T& value : values) {
      parts.push_back((*this)(value));
    }
    return fmt::format("[{}]", join(parts, ", "));
  }
};

}  // namespace

std::optional<ConfigValue> value_of(const Field& field, const RunConfig& config) {
  // One accessor per key serves reading and writing; here the reference is only read.
  return std::visit(ReadValue(), field.value(const_cast<RunConfig&>(config)));
}

ConfigValue empty_value(const Field& field) {
  RunConfig config;
  return std::visit(EmptyValue(), field.value(config));
}

void set_value(const Field& field, RunConfig& config, const ConfigValue& value) {
  std::visit(SetValue{field, value}, field.value(config));
}

std::optional<std::string> broken_limit(const Field& field, const ConfigValue& value) {
  return std::visit(BrokenLimit{field.limits}, value);
}

std::string to_text(const ConfigValue& value, size_t max_bytes) {
  return std::visit(ToText{max_bytes}, value);
}

std::string_view type_name(const ConfigValue& value) {
  constexpr std::array<std::string_view, std::variant_size_v<ConfigValue>> kNames = {
      "true or false", "an integer",         "a number",
      "a string",      "a list of integers", "a list of strings"};
  return kNames[value.index()];
}

std::string limits_text(const Limits& limits) {
  if (!limits.allowed.empty()) {
    std::vector<std::string> names;
    for (const std::string_view name : limits.allowed) {
      names.push_back(quote(name));
    }
    return join(names, ", ");
  }
  const std::string minimum = number_text(limits.minimum);
  const std::string maximum = number_text(limits.maximum);
  if (std::isinf(limits.minimum)) {
    return {};
  }
  if (std::isinf(limits.maximum)) {
    return "at least " + minimum;
  }
  return fmt::format("{} to {}{}", minimum, limits.excludes_maximum ? "below " : "", maximum);
}

}  // namespace braid
