#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace braid {

/// A block of host memory and its owner.
struct HostBlock {
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;  ///< of a type that only its creator knows
};

}  // namespace braid
