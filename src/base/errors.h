#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace braid {

/// Base of all errors that braid throws. `what()` is one line that a user can act on.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The user can fix it in the configuration or on the command line. The message names the value,
/// the limit and the option. Exit code 2.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A file or its content cannot be read, written or trusted: missing, truncated, corrupted, disk
/// full. The message names the path and what was expected. Exit code 1.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A device, a transport or a rank failed while a step was running. The message names rank, stream
/// and task. Exit code 1.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A broken invariant of our own: a bug in braid. The message names the pass or the task. Exit
/// code 1.
class InternalError : public Error {
 public:
  using Error::Error;
};

template <class... Args>
[[noreturn]] void throw_config_error(fmt::format_string<Args...> format, Args&&... args) {
  throw ConfigError(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void throw_data_error(fmt::format_string<Args...> format, Args&&... args) {
  throw DataError(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void throw_device_error(fmt::format_string<Args...> format, Args&&... args) {
  throw DeviceError(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void throw_internal_error(fmt::format_string<Args...> format, Args&&... args) {
  throw InternalError(fmt::format(format, std::forward<Args>(args)...));
}

/// Asserts an invariant of ours, in every build type. Throws InternalError with the formatted
/// reason.
template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]] {
    throw_internal_error(format, std::forward<Args>(args)...);
  }
}

}  // namespace braid
