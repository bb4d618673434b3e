#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"

namespace braid {

/// MurmurHash3_x86_32 of little-endian words. Any bit of words and seed changes about half of the
/// bits. Source: Austin Appleby, SMHasher, MurmurHash3.cpp, 2011 (public domain).
template <size_t kWords>
BRAID_HOST_DEVICE constexpr uint32_t murmur3(const uint32_t (&words)[kWords], uint32_t seed) {
  uint32_t hash = seed;
  for (size_t i = 0; i < kWords; ++i) {
    uint32_t word = words[i] * 0xCC9E2D51u;
    word = (word << 15) | (word >> 17);
    hash ^= word * 0x1B873593u;
    hash = (hash << 13) | (hash >> 19);
    hash = hash * 5 + 0xE6546B64u;
  }
  hash ^= static_cast<uint32_t>(kWords * sizeof(uint32_t));
  hash = (hash ^ (hash >> 16)) * 0x85EBCA6Bu;
  hash = (hash ^ (hash >> 13)) * 0xC2B2AE35u;
  return hash ^ (hash >> 16);
}

/// The bf16 below or above a float in magnitude, given the float's bits: above with a chance that
/// is the float's distance from the one below, if the low 16 bits of `random` are uniform. So the
/// mean over many roundings is the float. bf16 numbers, 0 and infinity stay, NaN stays NaN.
BRAID_HOST_DEVICE constexpr uint16_t bf16_rounded_randomly(uint32_t float_bits, uint32_t random) {
  const bool is_nan = (float_bits & 0x7FFF'FFFFu) > 0x7F80'0000u;
  const uint32_t rounded = (float_bits + (random & 0xFFFFu)) >> 16;
  return static_cast<uint16_t>(is_nan ? (float_bits >> 16) | 0x40u : rounded);
}

}  // namespace braid
