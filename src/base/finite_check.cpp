#include "base/finite_check.h"

#include <algorithm>
#include <cstring>

namespace braid {
namespace {

template <class Word>
bool is_bad(const std::byte* data, int64_t index, Word mask) {
  Word word;
  std::memcpy(&word, data + index * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
  return (word & mask) == mask;
}

/// Looks at whole blocks without leaving the loop early, so that it becomes vector instructions.
template <class Word>
std::optional<int64_t> find_word(const std::byte* data, int64_t num_elems, uint64_t bits) {
  constexpr int64_t kBlockElems = 1024;
  const auto mask = static_cast<Word>(bits);
  for (int64_t begin = 0; begin < num_elems; begin += kBlockElems) {
    const int64_t end = std::min(num_elems, begin + kBlockElems);
    Word any = 0;
    for (int64_t i = begin; i < end; ++i) {
      any = static_cast<Word>(any | static_cast<Word>(is_bad(data, i, mask)));
    }
    for (int64_t i = begin; any != 0 && i < end; ++i) {
      if (is_bad(data, i, mask)) {
        return i;
      }
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
