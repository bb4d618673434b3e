#include "base/philox.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace braid {
namespace {

constexpr int kRounds = 10;

std::array<uint32_t, 4> round_once(const std::array<uint32_t, 4>& counter,
                                   const std::array<uint32_t, 2>& key) {
  const uint64_t product0 = 0xD2511F53ull * counter[0];
  const uint64_t product1 = 0xCD9E8D57ull * counter[2];
  return {
      static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
      static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
}

// (0, 1]: 0 is left out because its logarithm is taken.
double uniform(uint32_t word0, uint32_t word1) {
  const uint64_t bits = (static_cast<uint64_t>(word0) << 32 | word1) >> 11;
  return (static_cast<double>(bits) + 1.0) * 0x1p-53;
}

}  // namespace

namespace {

std::array<uint32_t, 4> words_of(uint64_t key, uint64_t counter) {
  return philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                    {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    counter = round_once(counter, key);
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

std::array<double, 2> philox_normal_pair(uint64_t key, uint64_t pair) {
  const std::array<uint32_t, 4> words = words_of(key, pair);
  const double radius = std::sqrt(-2.0 * std::log(uniform(words[0], words[1])));
  const double angle = 2.0 * std::numbers::pi * uniform(words[2], words[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

double philox_normal(uint64_t key, uint64_t index) {
  return philox_normal_pair(key, index / 2)[index % 2];
}

double philox_uniform(uint64_t key, uint64_t index) {
  const std::array<uint32_t, 4> words = words_of(key, index);
  return std::min(uniform(words[0], words[1]), 1.0 - 0x1p-53);
}

uint64_t stable_hash(const char* data, uint64_t size, uint64_t hash) {
  for (uint64_t i = 0; i < size; ++i) {
    hash = (hash ^ static_cast<unsigned char>(data[i])) * 0x100000001B3ull;
  }
  return hash;
}

}  // namespace braid
