#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/host_device.h"

namespace braid {

/// The hash of a list of elements is the sum of this, modulo 2^64, over all of them, so any thread
/// may add any element. For one `index`, different `bits` have different values: a list in which
/// one element differs always has another hash, and one with more differences has the same hash
/// with a chance of about 2^-64. It detects accidents, not forgery.
BRAID_HOST_DEVICE constexpr uint64_t hash_of_element(uint64_t index, uint64_t bits) {
  uint64_t x = index * 0x9E3779B97F4A7C15u + bits;
  x ^= x >> 29;
  x *= 0xD6E8FEB86659FD93u;
  return x ^ (x >> 32);
}

/// The sum for `bytes`, elements of this dtype of which the first has index `first_index`.
uint64_t element_hash(std::span<const std::byte> bytes, DType dtype, uint64_t first_index);

}  // namespace braid
