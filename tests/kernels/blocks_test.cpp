#include "ops/blocks.h"

#include <algorithm>
#include <limits>

#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr int64_t kSizes[] = {1, 7, 2048, 2049, 3 * 16384 + 5};

KernelCase sum_case(DType dtype, size_t num_blocks, int64_t n) {
  OpSpec spec{"sum_blocks", {}, std::vector(num_blocks, read(dtype, {n}))};
  spec.operands.push_back(write(dtype, {n}));
  return KernelCase(spec);
}

template <class Sum>
double sum_in_order(const std::vector<std::vector<double>>& blocks, size_t i) {
  auto sum = static_cast<Sum>(blocks[0][i]);
  for (size_t block = 1; block < blocks.size(); ++block) {
    sum += static_cast<Sum>(blocks[block][i]);
  }
  return static_cast<double>(sum);
}

TEST(SumBlocks, AddsInOrderInTheWideType) {
  for (const DType dtype : kFloatDtypes) {
    for (const size_t num_blocks : {size_t{1}, size_t{2}, size_t{5}, size_t{8}}) {
      for (const int64_t n : kSizes) {
        KernelCase kernel = sum_case(dtype, num_blocks, n);
        std::vector<std::vector<double>> blocks;
        for (size_t i = 0; i < num_blocks; ++i) {
          blocks.push_back(kernel.values(i));
        }
        kernel.run();
        std::vector<double> expected;
        for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
          expected.push_back(rounded_to(dtype, dtype == DType::kF64
                                                   ? sum_in_order<double>(blocks, i)
                                                   : sum_in_order<float>(blocks, i)));
        }
        EXPECT_EQ(kernel.values(num_blocks), expected)
            << dtype_name(dtype) << " " << num_blocks << " x " << n;
      }
    }
  }
}

// 2^24 + 1 is no float: one after the other, the ones are lost; rounded late, they are not.
TEST(SumBlocks, RoundsOnceAndInOrder) {
  KernelCase kernel = sum_case(DType::kF32, 3, 1);
  kernel.set(0, {16777216.0});
  kernel.set(1, {1.0});
  kernel.set(2, {1.0});
  kernel.run();
  EXPECT_EQ(kernel.values(3), std::vector{16777216.0});
  KernelCase narrow = sum_case(DType::kBF16, 3, 1);
  narrow.set(0, {256.0});
  narrow.set(1, {1.0});
  narrow.set(2, {1.0});
  narrow.run();
  EXPECT_EQ(narrow.values(3), std::vector{258.0});  // 256 + 1 is 256 in bf16
}

TEST(SumBlocks, GivesTheSameBitsForAnyNumberOfWorkers) {
  for (const DType dtype : kFloatDtypes) {
    expect_same_for_any_workers([&] { return sum_case(dtype, 3, 3 * 16384 + 5); });
  }
}

TEST(LargestOfBlocks, TakesTheLargestElements) {
  for (const size_t num_blocks : {size_t{1}, size_t{2}, size_t{5}}) {
    for (const int64_t n : kSizes) {
      OpSpec spec{"largest_of_blocks", {}, std::vector(num_blocks, read(DType::kI32, {n}))};
      spec.operands.push_back(write(DType::kI32, {n}));
      KernelCase kernel(spec);
      std::vector<double> expected(static_cast<size_t>(n),
                                   static_cast<double>(std::numeric_limits<int32_t>::min()));
      for (size_t block = 0; block < num_blocks; ++block) {
        std::vector<double> values;
        for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
          values.push_back(static_cast<double>(
              static_cast<int32_t>((i * 2654435761u + block * 40503u + 12345u) & 0xFFFFFFFFu)));
          expected[i] = std::max(expected[i], values[i]);
        }
        kernel.set(block, values);
      }
      kernel.run();
      EXPECT_EQ(kernel.values(num_blocks), expected) << num_blocks << " x " << n;
    }
  }
}

KernelCase join_case(DType dtype, int64_t rows, const std::vector<int64_t>& widths) {
  OpSpec spec{"join_columns", {}, {}};
  int64_t width = 0;
  for (const int64_t columns : widths) {
    spec.operands.push_back(read(dtype, {rows, columns}));
    width += columns;
  }
  spec.operands.push_back(write(dtype, {rows, width}));
  return KernelCase(spec);
}

TEST(JoinColumns, PutsRowsSideBySide) {
  const std::vector<std::vector<int64_t>> cases = {{1}, {3, 1, 5}, {64, 64}, {7, 0, 9}};
  for (const DType dtype : kFloatDtypes) {
    for (const std::vector<int64_t>& widths : cases) {
      for (const int64_t rows : {int64_t{1}, int64_t{13}, int64_t{700}}) {
        KernelCase kernel = join_case(dtype, rows, widths);
        std::vector<std::vector<double>> blocks;
        for (size_t block = 0; block < widths.size(); ++block) {
          blocks.push_back(kernel.values(block));
        }
        std::vector<double> expected;
        for (int64_t row = 0; row < rows; ++row) {
          for (size_t block = 0; block < widths.size(); ++block) {
            const std::vector<double>& x = blocks[block];
            const auto begin = x.begin() + row * widths[block];
            expected.insert(expected.end(), begin, begin + widths[block]);
          }
        }
        kernel.run(2);
        EXPECT_EQ(kernel.values(widths.size()), expected);
      }
    }
  }
}

TEST(JoinBlocks, PutsBlocksOfRowsSideBySide) {
  for (const DType dtype : kFloatDtypes) {
    for (const auto& [blocks, rows, columns] : {std::tuple{1, 3, 4}, std::tuple{2, 1, 7},
                                                std::tuple{3, 130, 5}, std::tuple{8, 17, 128}}) {
      KernelCase kernel(
          {"join_blocks",
           {},
           {read(dtype, {blocks * rows, columns}), write(dtype, {rows, blocks * columns})}});
      const std::vector<double> x = kernel.values(0);
      std::vector<double> expected;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t block = 0; block < blocks; ++block) {
          const auto begin = x.begin() + (block * rows + row) * columns;
          expected.insert(expected.end(), begin, begin + columns);
        }
      }
      kernel.run(2);
      EXPECT_EQ(kernel.values(1), expected) << blocks << " blocks of " << rows;
    }
  }
}

}  // namespace
}  // namespace braid
