#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/fields.h"

namespace braid {

/// A value as a key holds it, whether or not the key is optional.
using ConfigValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>,
                                 std::vector<std::string>>;

/// The value of a key; nullopt for an optional key that is not given.
std::optional<ConfigValue> value_of(const Field& field, const RunConfig& config);

/// A ConfigValue of the type that the key holds, with nothing in it.
ConfigValue empty_value(const Field& field);

/// Stores a value of the key's own type. InternalError for another type; checks no limits.
void set_value(const Field& field, RunConfig& config, const ConfigValue& value);

/// What is wrong with a value of the key's own type, as the end of a message: "must be at least 1";
/// nullopt if it is fine. Texts must be UTF-8 without control characters; numbers must be finite.
std::optional<std::string> broken_limit(const Field& field, const ConfigValue& value);

/// As TOML: true, 3, 0.5, "text", [2, 3]. Doubles keep every bit. Texts are cut after `max_bytes`,
/// for messages.
std::string to_text(const ConfigValue& value, size_t max_bytes = SIZE_MAX);

/// The type of a value, for people: "an integer", "a list of strings".
std::string_view type_name(const ConfigValue& value);

/// "1 to 4096", "at least 0", "\"on\", \"off\""; empty where anything goes.
std::string limits_text(const Limits& limits);

}  // namespace braid
