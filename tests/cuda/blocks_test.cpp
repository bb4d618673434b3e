#include "ops/blocks.h"

#include <algorithm>
#include <random>

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using BlocksCudaTest = CudaKernelTest;

KernelCase sum_case(DType dtype, size_t num_blocks, int64_t count) {
  OpSpec spec{"sum_blocks", {}, std::vector(num_blocks, read(dtype, {count}))};
  spec.operands.push_back(write(dtype, {count}));
  return KernelCase(spec);
}

KernelCase join_case(DType dtype, int64_t rows, int64_t columns) {
  return KernelCase({"join_columns",
                     {},
                     {read(dtype, {rows, columns}), read(dtype, {rows, 3 * columns}),
                      write(dtype, {rows, 4 * columns})}});
}

TEST_F(BlocksCudaTest, JoinsBlocksAsTheCpuDoes) {
  for (const DType dtype : kCudaDtypes) {
    for (const int64_t columns : {1, 5, 128}) {
      for (const int64_t blocks : {3, 37}) {
        const int64_t rows = 3 * 37 / blocks;
        expect_same_as_cpu(
            [&] {
              return KernelCase(
                  {"join_blocks",
                   {},
                   {read(dtype, {3 * 37, columns}), write(dtype, {rows, blocks * columns})}});
            },
            context(), fmt::format("{} blocks of [{},{}]", blocks, rows, columns));
      }
    }
  }
}

TEST_F(BlocksCudaTest, GivesTheNumbersOfTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const size_t num_blocks : {size_t{1}, size_t{2}, size_t{8}, kMaxBlocks}) {
      for (const int64_t count : {1, 8, 31, 4096, 100003}) {
        expect_same_as_cpu([&] { return sum_case(dtype, num_blocks, count); }, context(),
                           fmt::format("{} x [{}]", num_blocks, count));
      }
    }
    for (const int64_t columns : {1, 5, 64}) {
      expect_same_as_cpu([&] { return join_case(dtype, 37, columns); }, context(),
                         fmt::format("[37,{}]", columns));
    }
  }
}

// Of the gradients' norm.
TEST_F(BlocksCudaTest, AddsF64InF64) {
  for (const size_t num_blocks : {size_t{2}, size_t{3}, kMaxBlocks}) {
    for (const int64_t count : {1, 2, 31, 4096}) {
      expect_same_as_cpu([&] { return sum_case(DType::kF64, num_blocks, count); }, context(),
                         fmt::format("{} x [{}]", num_blocks, count));
    }
  }
}

TEST_F(BlocksCudaTest, TakesTheLargestElements) {
  for (const size_t num_blocks : {size_t{1}, size_t{2}, kMaxBlocks}) {
    for (const int64_t count : {1, 31, 100003}) {
      OpSpec spec{"largest_of_blocks", {}, std::vector(num_blocks, read(DType::kI32, {count}))};
      spec.operands.push_back(write(DType::kI32, {count}));
      const auto make = [&] {
        KernelCase kernel(spec);
        std::mt19937 random(7);
        for (size_t block = 0; block < num_blocks; ++block) {
          std::vector<double> values(static_cast<size_t>(count));
          std::ranges::generate(values, [&] { return static_cast<int32_t>(random()); });
          kernel.set(block, values);
        }
        return kernel;
      };
      expect_same_as_cpu(make, context(), fmt::format("{} x [{}]", num_blocks, count));
    }
  }
}

TEST_F(BlocksCudaTest, IsBitwiseRepeatable) {
  for (const DType dtype : kCudaDtypes) {
    expect_repeatable([&] { return sum_case(dtype, 8, 10008); }, context());
    expect_repeatable([&] { return join_case(dtype, 37, 5); }, context());
  }
}

}  // namespace
}  // namespace braid
