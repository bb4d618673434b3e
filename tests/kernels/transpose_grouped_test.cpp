#include "ops/transpose_grouped.h"

#include <cmath>
#include <limits>

#include "support/sent_rows_cases.h"
#include "support/signal_to_noise.h"

namespace braid {
namespace {

constexpr int64_t kBlock = GroupedColumns::kBlock;
constexpr DType kFormats[] = {DType::kF8E4M3, DType::kF8E5M2};

KernelCase quantized(const Groups& g, DType format) {
  KernelCase copies = quantize_grouped_case(DType::kF32, g, {}, format);
  copies.run();
  return copies;
}

/// The elements of x [rows, g.in] that a case of transpose_grouped reads, NaN for no expert's.
std::vector<double> elements(const KernelCase& kernel, const Groups& g) {
  std::vector<double> x = kernel.values(0);
  const std::vector<double> scales = kernel.values(1);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] *= scales[i / size_t{kBlock}];
  }
  std::fill(x.begin() + g.used_rows() * g.in, x.end(), 0.0);
  return x;
}

// Bit for bit the copies of the elements of rows; what belongs to no expert stays.
TEST(TransposeGrouped, HasTheColumnsOfTheElementsOfItsRows) {
  for (const DType format : kFormats) {
    for (const Groups& g : awkward_copies()) {
      const KernelCase copies = quantized(g, format);
      KernelCase kernel = transpose_grouped_case(copies, g);
      kernel.run(2);
      KernelCase expected = quantize_grouped_case(DType::kF32, g, {.row = false}, format);
      expected.set(0, elements(kernel, g));
      expected.run();
      EXPECT_EQ(kernel.bytes(4), expected.bytes(2));
      EXPECT_EQ(kernel.bytes(5), expected.bytes(3));
    }
  }
}

TEST(TransposeGrouped, PutsScalesOfRowsWhereProductsReadThem) {
  for (const Groups& g : awkward_copies()) {
    const KernelCase copies = quantized(g, DType::kF8E4M3);
    for (const bool column : {true, false}) {
      KernelCase kernel = transpose_grouped_case(copies, g, {.column = column});
      kernel.run(2);
      EXPECT_EQ(kernel.bytes(3), copies.bytes(3));
    }
  }
}

/// What copies by columns hold, where rows are; 0 elsewhere.
std::vector<double> column_elements(const KernelCase& kernel, size_t operand, const Groups& g) {
  std::vector<double> values = kernel.values(operand);
  const std::vector<double> scales = kernel.values(operand + 1);
  const std::vector<int> kinds = column_kinds(g);
  const size_t width = kinds.size();
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t scale = i % width / size_t{kBlock} * static_cast<size_t>(g.in) + i / width;
    values[i] = kinds[i % width] == 1 ? values[i] * scales[scale] : 0.0;
  }
  return values;
}

// Rows of very different sizes: the small ones are subnormal in blocks of columns. FP8's own noise
// is 32 dB below the values.
TEST(TransposeGrouped, IsCloseToRoundingValuesByColumns) {
  const Groups g{.counts = {300, 0, 128, 77}, .in = 256, .out = 0, .unused_rows = 9};
  KernelCase copies = quantize_grouped_case(DType::kF32, g);
  TestRandom random(23);
  std::vector<double> x;
  for (int64_t r = 0; r < g.rows(); ++r) {
    const int exponent = -static_cast<int>(random.below(16));
    for (int64_t c = 0; c < g.in; ++c) {
      x.push_back(std::ldexp(random.uniform(-1, 1) + random.uniform(-1, 1), exponent));
    }
  }
  copies.set(0, x);
  poison_unused(copies, 0, g);
  copies.run();
  KernelCase kernel = transpose_grouped_case(copies, g);
  kernel.run();
  const double snr = snr_db(column_elements(copies, 4, g), column_elements(kernel, 4, g));
  EXPECT_GT(snr, 90);
  EXPECT_LT(snr, 200) << "no element was rounded otherwise";
}

/// The least normal number of the format.
constexpr double kLeastNormal = 0x1p-6;

// Scales are powers of two: only what is subnormal in one of the two copies can differ.
TEST(TransposeGrouped, ChangesOnlyElementsThatAreSubnormal) {
  const Groups g{.counts = {300, 0, 128, 77}, .in = 256, .out = 0, .unused_rows = 9};
  KernelCase copies = quantized(g, DType::kF8E4M3);
  KernelCase kernel = transpose_grouped_case(copies, g);
  kernel.run();
  const std::vector<double> expected = column_elements(copies, 4, g);
  const std::vector<double> found = column_elements(kernel, 4, g);
  const std::vector<double> columns = copies.values(4);
  const std::vector<double> columns_of_rows = kernel.values(4);
  const std::vector<double> rows = copies.values(2);
  const std::vector<int> kinds = column_kinds(g);
  std::vector<int64_t> row_of(kinds.size(), -1);
  int64_t next = 0;
  for (size_t i = 0; i < kinds.size(); ++i) {
    row_of[i] = kinds[i] == 1 ? next++ : -1;
  }
  int64_t changed = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == expected[i]) {
      continue;
    }
    ++changed;
    const int64_t row = row_of[i % kinds.size()];
    const auto column = static_cast<int64_t>(i / kinds.size());
    EXPECT_TRUE(std::abs(columns[i]) <= kLeastNormal ||
                std::abs(columns_of_rows[i]) <= kLeastNormal ||
                std::abs(rows[size_t(row * g.in + column)]) <= kLeastNormal)
        << i;
  }
  EXPECT_GT(changed, 0);
}

TEST(TransposeGrouped, BlocksThatAreNotFiniteStayNaN) {
  const Groups g{.counts = {130, 2}, .in = 256, .out = 0};
  KernelCase copies = quantize_grouped_case(DType::kF32, g);
  std::vector<double> x = copies.values(0);
  x[129 * 256 + 3] = std::numeric_limits<double>::infinity();
  copies.set(0, x);
  copies.run();
  KernelCase kernel = transpose_grouped_case(copies, g);
  kernel.run();
  const std::vector<double> column = kernel.values(4);
  for (int64_t c = 0; c < g.in; ++c) {  // the row's block [0, 128) is NaN
    for (const int64_t r : {int64_t{0}, int64_t{127}, int64_t{128}, int64_t{129}}) {
      const bool is_lost = c < kBlock && r >= kBlock;
      EXPECT_EQ(std::isnan(column[size_t(c * columns_of(g) + r)]), is_lost) << c << " " << r;
    }
  }
}

TEST(TransposeGrouped, CountsElementsOfColumns) {
  const Groups g{.counts = {5, 0, 131}, .in = 256, .out = 0, .unused_rows = 7};
  const KernelCase copies = quantized(g, DType::kF8E4M3);
  KernelCase kernel = transpose_grouped_case(copies, g, {.watch = {true}});
  kernel.run(3);
  const std::vector<double> x = elements(kernel, g);
  const std::vector<double> column = kernel.values(4);
  const std::vector<int> kinds = column_kinds(g);
  int64_t flushed = 0;
  double largest = 0;
  int64_t row = 0;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] != 1) {
      continue;
    }
    for (int64_t c = 0; c < g.in; ++c) {
      const double value = x[size_t(row * g.in + c)];
      largest = std::max(largest, std::abs(value));
      flushed += value != 0 && column[size_t(c) * kinds.size() + i] == 0 ? 1 : 0;
    }
    ++row;
  }
  const std::vector<double> tally = kernel.values(6);
  EXPECT_GT(flushed, 0);
  EXPECT_EQ(tally[Fp8Tally::kLargest], double(std::bit_cast<uint32_t>(float(largest))));
  EXPECT_EQ(tally[Fp8Tally::kFlushed], double(flushed));
  EXPECT_EQ(tally[Fp8Tally::kSaturated], 0);
  EXPECT_EQ(tally[Fp8Tally::kElems], double(g.used_rows() * g.in));
}

TEST(TransposeGrouped, DoesNotDependOnTheNumberOfWorkers) {
  const Groups g{.counts = {129, 0, 700, 3}, .in = 384, .out = 0, .unused_rows = 5};
  const KernelCase copies = quantized(g, DType::kF8E4M3);
  expect_same_for_any_workers([&] { return transpose_grouped_case(copies, g, {.watch = {true}}); });
}

TEST(TransposeGrouped, RefusesOffsetsThatAreNoRanges) {
  const Groups g{.counts = {2, 3}, .in = 128, .out = 0};
  KernelCase kernel = transpose_grouped_case(quantized(g, DType::kF8E4M3), g);
  kernel.set(2, {0, 2, 6});
  EXPECT_THROW(kernel.run(), DeviceError);
}

}  // namespace
}  // namespace braid
