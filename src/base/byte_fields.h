#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/errors.h"

namespace braid {

/// Writes values one after the other in the byte order of this machine (little-endian on all
/// supported machines). For other processes of one run, not for files.
class ByteWriter {
 public:
  template <class T>
  ByteWriter& number(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  ByteWriter& text(std::string_view value) {
    number(static_cast<uint64_t>(value.size()));
    bytes_.append(value);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads them. Throws DeviceError if fewer bytes remain than requested.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T number() {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(number<uint64_t>())); }
  std::string_view rest() const { return rest_; }
  /// Reads the number of items that follow, each of at least `min_bytes`.
  size_t count(size_t min_bytes) {
    const auto value = number<uint64_t>();
    if (value > rest_.size() / min_bytes) {
      throw_device_error("a message of another process is damaged");
    }
    return value;
  }

 private:
  std::string_view take(uint64_t count) {
    if (count > rest_.size()) {
      throw_device_error("a message of another process is cut short");
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
};

}  // namespace braid
