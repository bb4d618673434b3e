#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace braid {

/// A strong integer index into a vector of one type of object. Copies, compares and hashes like the
/// integer.
template <class Tag>
struct Id {
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t value = kNone;

  constexpr Id() = default;
  constexpr explicit Id(size_t index) : value(static_cast<uint32_t>(index)) {}

  constexpr bool valid() const { return value != kNone; }
  constexpr size_t index() const { return value; }
  friend constexpr auto operator<=>(Id, Id) = default;
};

}  // namespace braid

template <class Tag>
struct std::hash<braid::Id<Tag>> {
  size_t operator()(braid::Id<Tag> id) const noexcept { return std::hash<uint32_t>{}(id.value); }
};
