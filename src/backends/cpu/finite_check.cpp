#include "backends/cpu/finite_check.h"

#include <cstring>

namespace braid {
namespace {

template <class Word>
std::optional<int64_t> find_word(const std::byte* data, int64_t num_elems, uint64_t bits) {
  const auto mask = static_cast<Word>(bits);
  for (int64_t i = 0; i < num_elems; ++i) {
    Word word;
    std::memcpy(&word, data + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    if ((word & mask) == mask) {
      return i;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> find_non_finite(const std::byte* data, int64_t num_elems, DType dtype) {
  const uint64_t bits = non_finite_bits(dtype);
  if (bits == 0) {
    return std::nullopt;
  }
  switch (dtype_bytes(dtype)) {
    case sizeof(uint8_t):
      return find_word<uint8_t>(data, num_elems, bits);
    case sizeof(uint16_t):
      return find_word<uint16_t>(data, num_elems, bits);
    case sizeof(uint32_t):
      return find_word<uint32_t>(data, num_elems, bits);
    default:
      return find_word<uint64_t>(data, num_elems, bits);
  }
}

}  // namespace braid
