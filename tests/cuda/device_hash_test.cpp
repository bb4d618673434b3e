#include "backends/cuda/device_hash.h"

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <vector>

#include "backends/cuda/device_arena.h"
#include "backends/element_hash.h"
#include "support/cuda_kernel_case.h"

namespace braid {
namespace {

class DeviceHash : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_gpu().empty()) {
      GTEST_SKIP() << why_no_gpu();
    }
  }
};

TEST_F(DeviceHash, IsThatOfTheHost) {
  constexpr uint64_t kFirstIndex = (uint64_t{1} << 40) + 3;
  std::mt19937 random(1);
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64}) {
    for (const int64_t count : {0, 1, 31, 2047, 2049, 5'000'003}) {
      const auto size = static_cast<size_t>(count) * dtype_bytes(dtype);
      std::vector<std::byte> bytes(size);
      for (std::byte& byte : bytes) {
        byte = static_cast<std::byte>(random());
      }
      const DeviceArena data(static_cast<int64_t>(size) + 1, "elements");
      const DeviceArena word(256, "word");
      BRAID_CUDA_CHECK(cudaMemset(word.data(), 0, sizeof(uint64_t)));
      BRAID_CUDA_CHECK(cudaMemcpy(data.data(), bytes.data(), size, cudaMemcpyHostToDevice));
      auto* const sum = reinterpret_cast<uint64_t*>(word.data());
      add_hash_on_device({data.data(), count, dtype}, kFirstIndex, sum, nullptr);
      uint64_t result = 0;
      BRAID_CUDA_CHECK(cudaMemcpy(&result, sum, sizeof(result), cudaMemcpyDeviceToHost));
      EXPECT_EQ(result, element_hash(bytes, dtype, kFirstIndex)) << count;
    }
  }
}

}  // namespace
}  // namespace braid
