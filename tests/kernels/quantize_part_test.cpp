#include "ops/quantize_part.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/kernel_harness.h"

namespace braid {
namespace {

/// A weight whose whole copies `quantize_weight` makes, to compare with.
struct Weight {
  DType dtype = DType::kBF16;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t block = 128;
  std::vector<double> x = {};
  MainWeightsAttribute rounds = {};
  bool square = block != 0;

  ScaleLayout scales() const { return {.block = block, .square = square}; }
  int64_t count() const { return rows * columns; }
  Shape blocks() const { return magnitude_shape(rows, columns, block); }
};

KernelCase whole_copies(const Weight& weight) {
  const ScaleLayout scales = weight.scales();
  const Shape row{weight.rows, weight.columns};
  const Shape column{weight.columns, weight.rows};
  KernelCase kernel({"quantize_weight",
                     to_attributes(QuantizeAttributes{
                         .block = weight.block, .square = scales.square, .rounds = weight.rounds}),
                     {read(weight.dtype, row), write(DType::kF8E4M3, row),
                      write(scales.dtype(), scales.shape(row)), write(DType::kF8E4M3, column),
                      write(scales.dtype(), scales.shape(column))}});
  kernel.set(0, weight.x);
  kernel.run();
  return kernel;
}

struct Cut {
  int64_t begin = 0;
  int64_t end = 0;
};

KernelCase part_case(const char* op, const Weight& weight, Cut cut,
                     std::vector<OperandSpec> operands) {
  operands.insert(operands.begin(), read(weight.dtype, {cut.end - cut.begin}));
  KernelCase kernel({op,
                     to_attributes(QuantizePartAttributes{.rows = weight.rows,
                                                          .columns = weight.columns,
                                                          .block = weight.block,
                                                          .begin = cut.begin,
                                                          .rounds = weight.rounds}),
                     std::move(operands)});
  kernel.set(0, {weight.x.begin() + cut.begin, weight.x.begin() + cut.end});
  return kernel;
}

/// Of the whole weight: the largest of those of its parts.
std::vector<double> magnitudes_of(const Weight& weight, const std::vector<Cut>& cuts) {
  std::vector<double> largest(static_cast<size_t>(weight.blocks().num_elems()), 0.0);
  for (const Cut& cut : cuts) {
    KernelCase kernel =
        part_case("part_magnitudes", weight, cut, {write(DType::kI32, weight.blocks())});
    kernel.run();
    const std::vector<double> its = kernel.values(1);
    for (size_t i = 0; i < largest.size(); ++i) {
      largest[i] = std::max(largest[i], its[i]);
    }
  }
  return largest;
}

std::vector<std::byte> row_copy_of(const Weight& weight, const std::vector<Cut>& cuts,
                                   const std::vector<double>& magnitudes) {
  std::vector<std::byte> row;
  for (const Cut& cut : cuts) {
    KernelCase kernel = part_case(
        "quantize_part", weight, cut,
        {read(DType::kI32, weight.blocks()), write(DType::kF8E4M3, {cut.end - cut.begin})});
    kernel.set(1, magnitudes);
    kernel.run(2);
    const std::vector<std::byte> part = kernel.bytes(2);
    row.insert(row.end(), part.begin(), part.end());
  }
  return row;
}

KernelCase scales_of(const Weight& weight, const std::vector<double>& magnitudes) {
  const ScaleLayout scales = weight.scales();
  KernelCase kernel({"scales_of_magnitudes",
                     to_attributes(MagnitudeScalesAttributes{
                         .rows = weight.rows, .columns = weight.columns, .block = weight.block}),
                     {read(DType::kI32, weight.blocks()),
                      write(scales.dtype(), scales.shape({weight.rows, weight.columns})),
                      write(scales.dtype(), scales.shape({weight.columns, weight.rows}))}});
  kernel.set(0, magnitudes);
  kernel.run();
  return kernel;
}

/// The weight in `parts` parts, cut anywhere; some may be empty.
std::vector<Cut> random_cuts(TestRandom& random, int64_t count, int parts) {
  std::vector<int64_t> at{0, count};
  for (int i = 1; i < parts; ++i) {
    at.push_back(random.below(count + 1));
  }
  std::ranges::sort(at);
  std::vector<Cut> cuts;
  for (size_t i = 0; i + 1 < at.size(); ++i) {
    cuts.push_back({at[i], at[i + 1]});
  }
  return cuts;
}

void expect_whole_copies(const Weight& weight, const std::vector<Cut>& cuts) {
  const KernelCase whole = whole_copies(weight);
  const std::vector<double> magnitudes = magnitudes_of(weight, cuts);
  const std::vector<std::byte> row = row_copy_of(weight, cuts, magnitudes);
  EXPECT_TRUE(row == whole.bytes(1));
  const KernelCase scales = scales_of(weight, magnitudes);
  EXPECT_TRUE(scales.bytes(1) == whole.bytes(2));
  EXPECT_TRUE(scales.bytes(2) == whole.bytes(4));
  KernelCase columns({"transpose",
                      {},
                      {read(DType::kF8E4M3, {weight.rows, weight.columns}),
                       write(DType::kF8E4M3, {weight.columns, weight.rows})}});
  columns.set(0, whole.values(1));
  columns.run(2);
  const std::vector<double> expected = whole.values(3);
  const std::vector<double> found = columns.values(1);
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i]))) << i;
  }
}

/// Values of very different sizes: the largest of a block is in one of its parts.
std::vector<double> uneven_values(TestRandom& random, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(std::ldexp(random.uniform(-1, 1), static_cast<int>(random.below(30)) - 15));
  }
  return values;
}

TEST(QuantizePart, PartsOfAnyCutAreThoseOfTheWholeWeight) {
  TestRandom random(11);
  const std::pair<int64_t, int64_t> sizes[] = {{1, 1}, {130, 260}, {257, 64}};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t block : {0, 32, 128}) {
      for (const auto& [rows, columns] : sizes) {
        const Weight weight{dtype, rows, columns, block, uneven_values(random, rows * columns)};
        for (const int parts : {2, 5}) {
          expect_whole_copies(weight, random_cuts(random, weight.count(), parts));
        }
      }
    }
  }
}

// 1.7501 x 2^20 rounds to 1.75 x 2^20, which has a smaller scale; 2^-120 is far below all others.
TEST(QuantizePart, MainWeightsHaveTheCopiesOfWeightsInBf16) {
  TestRandom random(13);
  for (const auto& [block, square] :
       {std::pair{0, false}, std::pair{32, false}, std::pair{32, true}, std::pair{128, true}}) {
    Weight main{DType::kF32, 160, 192, block, uneven_values(random, 160 * 192), {true}, square};
    main.x[7] = std::ldexp(1.7501, 20);
    main.x[8] = std::ldexp(1.0, -120);
    Weight narrow = main;
    narrow.dtype = DType::kBF16;
    narrow.rounds = {};
    const KernelCase expected = whole_copies(narrow);
    const KernelCase found = whole_copies(main);
    for (const size_t operand : {1, 2, 3, 4}) {
      EXPECT_TRUE(found.bytes(operand) == expected.bytes(operand)) << block << " " << operand;
    }
    if (square || block == 0) {
      expect_whole_copies(main, random_cuts(random, main.count(), 3));
    }
    Weight plain = main;
    plain.rounds = {};
    EXPECT_FALSE(whole_copies(plain).bytes(1) == expected.bytes(1)) << block;
  }
}

TEST(QuantizePart, ABlockWithInfinityOrNaNIsNaNInAllParts) {
  TestRandom random(12);
  for (const double bad :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    for (const int64_t block : {0, 32, 128}) {
      Weight weight{DType::kBF16, 200, 256, block, uneven_values(random, 200 * 256)};
      weight.x[100] = bad;  // in the first block, of which the second part has most
      const std::vector<Cut> cuts{{0, 300}, {300, 200 * 256}};
      expect_whole_copies(weight, cuts);
      const std::vector<std::byte> row = row_copy_of(weight, cuts, magnitudes_of(weight, cuts));
      const auto nan = std::byte{0x7F};
      EXPECT_EQ(row[block == 32 ? 256 * 31 + 96 : 256 * 127], nan);  // in the same block
      EXPECT_EQ(row[256 * 127 + 128] == nan, block == 0);
    }
  }
}

TEST(QuantizePart, MagnitudesOfBlocksOutsideOfThePartAreZero) {
  const Weight weight{DType::kBF16, 256, 256, 128, std::vector<double>(256 * 256, 2.0)};
  KernelCase kernel = part_case("part_magnitudes", weight, {128 * 256, 128 * 256 + 64},
                                {write(DType::kI32, {2, 2})});
  kernel.run();
  EXPECT_EQ(kernel.values(1), (std::vector<double>{0, 0, 0x40000000, 0}));
}

}  // namespace
}  // namespace braid
