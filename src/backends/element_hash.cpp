#include "backends/element_hash.h"

#include <cstring>

#include "base/errors.h"

namespace braid {
namespace {

template <class Word>
uint64_t hash_words(std::span<const std::byte> bytes, uint64_t index) {
  uint64_t sum = 0;
  for (size_t at = 0; at < bytes.size(); at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    sum += hash_of_element(index++, word);
  }
  return sum;
}

}  // namespace

uint64_t element_hash(std::span<const std::byte> bytes, DType dtype, uint64_t first_index) {
  check(bytes.size() % dtype_bytes(dtype) == 0, "{} bytes are not whole elements of {} bytes",
        bytes.size(), dtype_bytes(dtype));
  switch (dtype_bytes(dtype)) {
    case sizeof(uint8_t):
      return hash_words<uint8_t>(bytes, first_index);
    case sizeof(uint16_t):
      return hash_words<uint16_t>(bytes, first_index);
    case sizeof(uint32_t):
      return hash_words<uint32_t>(bytes, first_index);
    default:
      return hash_words<uint64_t>(bytes, first_index);
  }
}

}  // namespace braid
