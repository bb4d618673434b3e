#pragma once

#include <array>
#include <cstdint>

namespace braid {

/// Philox4x32-10: four random words from a 128-bit counter and a 64-bit key, without state. So
/// element i of a tensor has the same value on every rank, in any order and layout. Source: Salmon
/// et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011, section 3.3.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Standard normal variates number 2 * pair and 2 * pair + 1 of the stream `key` (Box-Muller over
/// the four Philox words of counter `pair`), at little more than the cost of one.
std::array<double, 2> philox_normal_pair(uint64_t key, uint64_t pair);

/// Standard normal variate number `index` of the stream `key`: one of its pair.
double philox_normal(uint64_t key, uint64_t index);

/// Uniform in (0, 1), variate number `index` of the stream `key`. Not to be mixed with normal ones
/// of the same stream.
double philox_uniform(uint64_t key, uint64_t index);

/// 64-bit FNV-1a: turns names into Philox keys, the same on every platform. `hash`: that of the
/// bytes before these.
uint64_t stable_hash(const char* data, uint64_t size, uint64_t hash = 0xCBF29CE484222325ull);

}  // namespace braid
