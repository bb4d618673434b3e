#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"

namespace braid {

/// Several mistakes of one configuration. what() has all of them in one line.
class ConfigMistakes : public ConfigError {
 public:
  explicit ConfigMistakes(std::vector<std::string> mistakes);
  const std::vector<std::string>& mistakes() const { return mistakes_; }

 private:
  std::vector<std::string> mistakes_;
};

/// The mistakes of an error: those of a ConfigMistakes, or the one of any other.
std::vector<std::string> mistakes_of(const ConfigError& error);

/// Gathers what checks refuse, so that a user sees all of it at once. Checks whose result a mistake
/// found so far would decide are left to the caller to skip.
class Mistakes {
 public:
  /// Adds the formatted mistake unless the rule holds. Returns `holds`.
  template <class... Args>
  bool require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
    if (!holds) {
      list_.push_back(fmt::format(format, std::forward<Args>(args)...));
    }
    return holds;
  }

  /// Runs a check that throws ConfigError, and adds its mistakes. Returns whether it threw none.
  template <class Check>
  bool check(Check&& check) {
    try {
      std::forward<Check>(check)();
      return true;
    } catch (const ConfigError& error) {
      add(error);
      return false;
    }
  }

  void add(const ConfigError& error);

  /// Throws a single mistake as a ConfigError, and several as ConfigMistakes.
  void throw_if_any() const;

 private:
  std::vector<std::string> list_;
};

}  // namespace braid
