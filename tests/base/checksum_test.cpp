#include "base/checksum.h"

#include <gtest/gtest.h>

#include <string_view>

namespace braid {
namespace {

std::string checksum_of_text(std::string_view text) {
  return checksum_of(std::as_bytes(std::span(text)));
}

// Test vectors of xxHash 0.8: XXH3_64bits without a seed.
TEST(Checksum, IsXxh3) {
  EXPECT_EQ(checksum_of_text(""), "2d06800538d394c2");
  EXPECT_EQ(checksum_of_text("a"), "e6c632b61e964e1f");
  EXPECT_EQ(checksum_of_text("abc"), "78af5f94892f3950");
}

TEST(Checksum, DoesNotDependOnHowBytesAreCut) {
  const std::string text(10'000, 'b');
  Checksum checksum;
  checksum.add({});
  for (size_t begin = 0; begin < text.size(); begin += 777) {
    checksum.add(
        std::as_bytes(std::span(text)).subspan(begin, std::min<size_t>(777, text.size() - begin)));
  }
  EXPECT_EQ(checksum.hex(), checksum_of_text(text));
}

}  // namespace
}  // namespace braid
