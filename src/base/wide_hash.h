#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/philox.h"
#include "base/shape.h"

namespace braid {

/// A hash of 128 bits of a series of values, to compare what is too large to be kept. Not for
/// values that somebody chose so that hashes are equal.
class WideHash {
 public:
  using Value = std::pair<uint64_t, uint64_t>;

  void add(uint64_t value) {
    hash_.first = (hash_.first ^ value) * 0x9E3779B97F4A7C15ull;
    hash_.first ^= hash_.first >> 29;
    hash_.second = (hash_.second + value) * 0xD6E8FEB86659FD93ull;
    hash_.second ^= hash_.second >> 32;
  }
  void add(std::string_view text) {
    add(text.size());
    add(stable_hash(text.data(), text.size()));
    add(stable_hash(text.data(), text.size(), /*hash=*/text.size()));
  }
  void add(const Shape& shape) {
    add(static_cast<uint64_t>(shape.rank()));
    for (const int64_t dim : shape) {
      add(static_cast<uint64_t>(dim));
    }
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void add(Enum value) { add(static_cast<uint64_t>(value)); }

  const Value& value() const { return hash_; }

 private:
  Value hash_{1, 2};
};

}  // namespace braid
