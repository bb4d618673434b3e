#include "backends/element_hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "base/errors.h"

namespace braid {
namespace {

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random());
  }
  return bytes;
}

TEST(ElementHash, EachBitOfEachElementChangesIt) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64}) {
    std::vector<std::byte> bytes = random_bytes(64 * dtype_bytes(dtype));
    std::set<uint64_t> seen = {element_hash(bytes, dtype, 0)};
    for (std::byte& byte : bytes) {
      for (int bit = 0; bit < 8; ++bit) {
        byte ^= std::byte{1} << bit;
        EXPECT_TRUE(seen.insert(element_hash(bytes, dtype, 0)).second);
        byte ^= std::byte{1} << bit;
      }
    }
  }
}

TEST(ElementHash, IsTheSumOfItsParts) {
  const std::vector<std::byte> bytes = random_bytes(40);
  const std::span<const std::byte> all(bytes);
  EXPECT_EQ(element_hash(all, DType::kF32, 7), element_hash(all.first(12), DType::kF32, 7) +
                                                   element_hash(all.subspan(12), DType::kF32, 10));
  EXPECT_EQ(element_hash({}, DType::kF32, 7), 0u);
}

TEST(ElementHash, DependsOnTheOrder) {
  const std::vector<float> values = {1, 2};
  const std::vector<float> swapped = {2, 1};
  EXPECT_NE(element_hash(std::as_bytes(std::span(values)), DType::kF32, 0),
            element_hash(std::as_bytes(std::span(swapped)), DType::kF32, 0));
}

TEST(ElementHash, TakesWholeElements) {
  EXPECT_THROW(element_hash(random_bytes(6), DType::kF32, 0), InternalError);
}

}  // namespace
}  // namespace braid
