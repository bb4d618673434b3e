#include "data/decompressor.h"

#include <gtest/gtest.h>

#include <string_view>

#include "data/compressed_text.h"

namespace braid {
namespace {

TEST(FindCompression, GoesByTheFirstBytes) {
  const auto found = [](std::string_view text) {
    return find_compression(std::as_bytes(std::span(text)));
  };
  EXPECT_EQ(found(kTwoJsonLinesGzip), Compression::kGzip);
  EXPECT_EQ(found(kTwoJsonLinesZstd), Compression::kZstd);
  EXPECT_EQ(found("\x5F\x2A\x4D\x18"), Compression::kZstd);
  EXPECT_EQ(found("text"), Compression::kNone);
  EXPECT_EQ(found(""), Compression::kNone);
}

TEST(CompressionName, IsThatOfTheFormat) {
  EXPECT_EQ(compression_name(Compression::kGzip), "gzip");
  EXPECT_EQ(compression_name(Compression::kZstd), "zstd");
}

}  // namespace
}  // namespace braid
