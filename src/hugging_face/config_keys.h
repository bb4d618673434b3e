#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"

namespace braid {

// The same limits as for these keys in a run file.
inline constexpr int64_t kMaxSize = 1 << 24;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxHeadSize = 65536;
inline constexpr int64_t kMaxExperts = 512;

/// The keys of a config.json. Remembers which ones were asked for. Where a value is not what its
/// reader wants, throws DataError naming file, key and value.
class ConfigKeys {
 public:
  /// `text`: an object of JSON. `path`: what messages call the file.
  ConfigKeys(std::string_view text, std::string_view path);
  ~ConfigKeys();

  /// The value of an object's key; null if it is missing.
  static const nlohmann::json& member(const nlohmann::json& object, std::string_view key);

  /// "KEY = VALUE" of each key that nobody asked for, has a value, and may change what the model
  /// computes.
  std::vector<std::string> ignored() const;

  /// Whether the file has the key, if only as null.
  bool has(const std::string& key) const;
  /// The value of a key; null if it is missing.
  const nlohmann::json& value_of(const std::string& key);

  /// An integer from 1 to `maximum`; `otherwise`, if there is such, of a missing key.
  int64_t size(const std::string& key, int64_t maximum,
               std::optional<int64_t> otherwise = std::nullopt);
  int64_t checked_size(const std::string& key, const nlohmann::json& value, int64_t maximum,
                       std::optional<int64_t> otherwise) const;
  /// An integer from 0 on.
  int64_t count(const std::string& key, int64_t maximum, int64_t otherwise);
  double number(const std::string& key, double otherwise, double minimum, double maximum);
  double checked_number(const std::string& key, const nlohmann::json& value, double otherwise,
                        double minimum, double maximum) const;
  bool flag(const std::string& key, bool otherwise);
  bool checked_flag(const std::string& key, const nlohmann::json& value, bool otherwise) const;

  /// Requires the value `only`, the only one that braid supports; `otherwise` is the default of a
  /// missing key.
  void require_flag(const std::string& key, bool only, bool otherwise);
  /// Requires one of these texts, or none.
  void require_text(const std::string& key, const std::vector<std::string>& allowed);
  /// A key that changes what the model computes unless it is missing, null or 0.
  void require_none(const std::string& key, std::string_view reason);

  template <class... Args>
  [[noreturn]] void refuse(std::string_view key, const nlohmann::json& value,
                           fmt::format_string<Args...> format, Args&&... args) const {
    throw_data_error("'{}': {} = {}: {}", path_, key, shown(value),
                     fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void refuse_model(std::string_view reason) const {
    throw_data_error("'{}' describes no model: {}", path_, reason);
  }

  /// A value as messages quote it.
  static std::string shown(const nlohmann::json& value);
  static std::string quote_key(const std::string& key);

 private:
  std::string_view path_;
  std::unique_ptr<const nlohmann::json> root_;
  std::set<std::string> known_;
};

}  // namespace braid
