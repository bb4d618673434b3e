#include "backends/cpu/finite_check.h"

#include <cstring>

namespace braid {
namespace {

/// NaN and infinity are the values with all exponent bits set.
template <class Word>
std::optional<int64_t> find_word(const std::byte* data, int64_t num_elems, Word exponent) {
  for (int64_t i = 0; i < num_elems; ++i) {
    Word word;
    std::memcpy(&word, data + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    if ((word & exponent) == exponent) {
      return i;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> find_non_finite(const std::byte* data, int64_t num_elems, DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return find_word<uint64_t>(data, num_elems, 0x7FF0'0000'0000'0000u);
    case DType::kF32:
      return find_word<uint32_t>(data, num_elems, 0x7F80'0000u);
    case DType::kBF16:
      return find_word<uint16_t>(data, num_elems, 0x7F80u);
    default:
      return std::nullopt;
  }
}

}  // namespace braid
