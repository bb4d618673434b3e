#include "base/sha256.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/errors.h"

namespace braid {
namespace {

constexpr size_t kBlockBytes = 64;
using Words = std::array<uint32_t, 8>;

// The first 32 bits of the fractional parts of the square roots of the first 8 primes.
constexpr Words kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// The same of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::array<uint32_t, 64> schedule_of(std::string_view block) {
  std::array<uint32_t, 64> words{};
  for (size_t i = 0; i < 16; ++i) {
    for (size_t byte = 0; byte < 4; ++byte) {
      words[i] = words[i] << 8 | static_cast<unsigned char>(block[4 * i + byte]);
    }
  }
  for (size_t i = 16; i < words.size(); ++i) {
    const uint32_t a = words[i - 15];
    const uint32_t b = words[i - 2];
    words[i] = words[i - 16] + words[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  return words;
}

void add_block(Words& state, std::string_view block) {
  const std::array<uint32_t, 64> words = schedule_of(block);
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < words.size(); ++i) {
    const uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                           ((e & f) ^ (~e & g)) + kRounds[i] + words[i];
    const uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const Words added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state.size(); ++i) {
    state[i] += added[i];
  }
}

template <class T>
void append_big_endian(std::string& bytes, T value) {
  for (size_t byte = sizeof value; byte > 0; --byte) {
    bytes += static_cast<char>(value >> (8 * (byte - 1)));
  }
}

std::string xor_with(std::string text, unsigned char mask) {
  for (char& c : text) {
    c = static_cast<char>(static_cast<unsigned char>(c) ^ mask);
  }
  return text;
}

}  // namespace

std::string sha256(std::string_view text) {
  std::string padded(text);
  padded += '\x80';
  while (padded.size() % kBlockBytes != kBlockBytes - sizeof(uint64_t)) {
    padded += '\0';
  }
  append_big_endian(padded, uint64_t{8} * text.size());
  Words state = kStart;
  for (size_t i = 0; i < padded.size(); i += kBlockBytes) {
    add_block(state, std::string_view(padded).substr(i, kBlockBytes));
  }
  std::string digest;
  for (const uint32_t word : state) {
    append_big_endian(digest, word);
  }
  return digest;
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string block = key.size() > kBlockBytes ? sha256(key) : std::string(key);
  block.resize(kBlockBytes);
  std::string inner = xor_with(block, 0x36);
  inner += message;
  return sha256(xor_with(block, 0x5c) + sha256(inner));
}

bool equal_secrets(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) {
    return false;
  }
  unsigned difference = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    difference |= static_cast<unsigned>(one[i] ^ other[i]);
  }
  return difference == 0;
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (::getentropy(bytes.data(), bytes.size()) != 0) {
    throw_device_error("getentropy of {} bytes: {}", count, std::strerror(errno));
  }
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

}  // namespace braid
