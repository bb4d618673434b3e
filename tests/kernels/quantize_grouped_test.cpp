#include "ops/quantize_grouped.h"

#include <cmath>

#include "base/expect_error.h"
#include "support/grouped_copies_cases.h"

namespace braid {
namespace {

constexpr int64_t kBlock = GroupedColumns::kBlock;

/// Elements of x that share a scale, by the place of each in the copy; and the place of the scale.
struct ScaledRun {
  std::vector<double> x;
  std::vector<size_t> places;
  size_t scale = 0;
};

std::vector<ScaledRun> runs_of_rows(const Groups& g, const std::vector<double>& x) {
  std::vector<ScaledRun> runs;
  for (int64_t r = 0; r < g.used_rows(); ++r) {
    for (int64_t c = 0; c < g.in; ++c) {
      if (c % kBlock == 0) {
        runs.push_back({.x = {}, .places = {}, .scale = size_t(c / kBlock * g.rows() + r)});
      }
      runs.back().places.push_back(size_t(r * g.in + c));
      runs.back().x.push_back(x[size_t(r * g.in + c)]);
    }
  }
  return runs;
}

std::vector<ScaledRun> runs_of_columns(const Groups& g, const std::vector<double>& x) {
  std::vector<ScaledRun> runs;
  for_each_expert(g, [&](int64_t e, int64_t first, int64_t count) {
    const int64_t begin = (first / kBlock + e) * kBlock;
    for (int64_t c = 0; c < g.in; ++c) {
      for (int64_t i = 0; i < count; ++i) {
        if (i % kBlock == 0) {
          runs.push_back({.x = {}, .places = {}, .scale = size_t((begin + i) / kBlock * g.in + c)});
        }
        runs.back().places.push_back(size_t(c * columns_of(g) + begin + i));
        runs.back().x.push_back(x[size_t((first + i) * g.in + c)]);
      }
    }
  });
  return runs;
}

double largest_of(DType format) {
  return format == DType::kF8E5M2 ? 57344 : 448;
}

/// The least power of two by which no element exceeds the largest number; 1 for zeros.
double expected_scale(const std::vector<double>& x, DType format) {
  double largest = 0;
  for (const double value : x) {
    largest = std::max(largest, std::abs(value));
  }
  return largest == 0 ? 1.0
                      : std::ldexp(1.0, int(std::ceil(std::log2(largest / largest_of(format)))));
}

/// Checks a copy, its scales, and that nothing else was written but zeros in `zeros`.
void check_copy(const KernelCase& kernel, size_t operand, const std::vector<ScaledRun>& runs,
                const std::vector<size_t>& zeros) {
  const DType format = kernel.spec().operands[operand].dtype;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> copy(static_cast<size_t>(kernel.num_elems(operand)), nan);
  std::vector<double> scales(static_cast<size_t>(kernel.num_elems(operand + 1)), nan);
  for (const ScaledRun& run : runs) {
    scales[run.scale] = expected_scale(run.x, format);
    for (size_t i = 0; i < run.x.size(); ++i) {
      copy[run.places[i]] = rounded_to(format, run.x[i] / scales[run.scale]);
    }
  }
  for (const size_t zero : zeros) {
    copy[zero] = 0;
  }
  EXPECT_THAT(kernel.values(operand), testing::Pointwise(testing::NanSensitiveDoubleEq(), copy));
  EXPECT_THAT(kernel.values(operand + 1),
              testing::Pointwise(testing::NanSensitiveDoubleEq(), scales));
}

/// The places of the columns behind the rows in the last blocks of experts.
std::vector<size_t> padding_of(const Groups& g) {
  const std::vector<int> kinds = column_kinds(g);
  std::vector<size_t> places;
  for (size_t i = 0; i < static_cast<size_t>(g.in) * kinds.size(); ++i) {
    if (kinds[i % kinds.size()] == 0) {
      places.push_back(i);
    }
  }
  return places;
}

// Outputs hold NaN before: what belongs to no expert must still hold it.
TEST(QuantizeGrouped, BlocksOfRowsAndOfEachExpertsColumns) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const DType format : {DType::kF8E4M3, DType::kF8E5M2}) {
      for (Groups g : awkward_copies()) {
        g.in = g.in == 128 ? 130 : g.in;  // a last block along the row that is not whole
        KernelCase kernel = quantize_grouped_case(dtype, g, {}, format);
        const std::vector<double> x = kernel.values(0);
        kernel.run(2);
        check_copy(kernel, 2, runs_of_rows(g, x), {});
        check_copy(kernel, 4, runs_of_columns(g, x), padding_of(g));
      }
    }
  }
}

TEST(QuantizeGrouped, EachCopyAlone) {
  const Groups g{.counts = {3, 0, 130}, .in = 256, .out = 0, .unused_rows = 2};
  KernelCase both = quantize_grouped_case(DType::kBF16, g);
  both.run();
  KernelCase row = quantize_grouped_case(DType::kBF16, g, {.column = false});
  row.run();
  KernelCase column = quantize_grouped_case(DType::kBF16, g, {.row = false});
  column.run();
  for (const size_t i : {2u, 3u}) {
    EXPECT_EQ(row.bytes(i), both.bytes(i));
    EXPECT_EQ(column.bytes(i), both.bytes(i + 2));
  }
}

TEST(QuantizeGrouped, AnotherExpertsRowsChangeNoBit) {
  const Groups g{.counts = {100, 60, 40}, .in = 128, .out = 0};
  KernelCase kernel = quantize_grouped_case(DType::kF32, g);
  std::vector<double> x = kernel.values(0);
  kernel.run();
  std::fill(x.begin() + 60 * 128, x.begin() + 100 * 128, 1e30);  // the last rows of expert 0
  KernelCase changed = quantize_grouped_case(DType::kF32, g);
  changed.set(0, x);
  changed.run();
  const std::vector<int> kinds = column_kinds(g);
  const std::vector<double> before = kernel.values(4);
  const std::vector<double> after = changed.values(4);
  const auto begin = size_t(GroupedColumns::begin(100, 1));
  int64_t compared = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (i % kinds.size() >= begin && kinds[i % kinds.size()] >= 0) {
      EXPECT_EQ(before[i], after[i]);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 128 * 2 * kBlock);
  EXPECT_NE(kernel.bytes(4), changed.bytes(4));
}

TEST(QuantizeGrouped, InfinityMakesItsBlocksNaN) {
  const Groups g{.counts = {130, 2}, .in = 256, .out = 0};
  KernelCase kernel = quantize_grouped_case(DType::kF32, g);
  std::vector<double> x = kernel.values(0);
  x[129 * 256 + 3] = std::numeric_limits<double>::infinity();  // the second block of expert 0
  kernel.set(0, x);
  kernel.run();
  const std::vector<double> row = kernel.values(2);
  const std::vector<double> column = kernel.values(4);
  for (size_t i = 0; i < row.size(); ++i) {
    EXPECT_EQ(std::isnan(row[i]), i / 128 == 129 * 2) << i;
  }
  for (int64_t i = 0; i < 3 * kBlock; ++i) {  // of that column; the third block is expert 1's
    const bool is_real = i < 130 || (i >= 2 * kBlock && i < 2 * kBlock + 2);
    if (is_real) {
      EXPECT_EQ(std::isnan(column[size_t(3 * columns_of(g) + i)]), i == 128 || i == 129) << i;
    }
  }
}

TEST(QuantizeGrouped, CountsElementsOfExpertsAlone) {
  const Groups g{.counts = {5, 0, 131}, .in = 130, .out = 0, .unused_rows = 7};
  KernelCase kernel = quantize_grouped_case(DType::kF32, g, {.watch = {true}});
  const std::vector<double> x = kernel.values(0);
  kernel.run(3);
  const std::vector<double> tally = kernel.values(6);
  double largest = 0;
  for (int64_t i = 0; i < g.used_rows() * g.in; ++i) {
    largest = std::max(largest, std::abs(x[size_t(i)]));
  }
  int64_t flushed = 0;
  for (const auto& [operand, runs] :
       {std::pair{size_t{2}, runs_of_rows(g, x)}, {size_t{4}, runs_of_columns(g, x)}}) {
    const std::vector<double> copy = kernel.values(operand);
    for (const ScaledRun& run : runs) {
      for (size_t i = 0; i < run.x.size(); ++i) {
        flushed += run.x[i] != 0 && copy[run.places[i]] == 0 ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(tally[Fp8Tally::kLargest], double(std::bit_cast<uint32_t>(float(largest))));
  EXPECT_GT(flushed, 0);
  EXPECT_EQ(tally[Fp8Tally::kFlushed], double(flushed));
  EXPECT_EQ(tally[Fp8Tally::kSaturated], 0);
  EXPECT_EQ(tally[Fp8Tally::kElems], double(2 * g.used_rows() * g.in));
}

TEST(QuantizeGrouped, DoesNotDependOnTheNumberOfWorkers) {
  const Groups g{.counts = {129, 0, 700, 3}, .in = 352, .out = 0, .unused_rows = 5};
  expect_same_for_any_workers(
      [&] { return quantize_grouped_case(DType::kBF16, g, {.watch = {true}}); });
}

TEST(QuantizeGrouped, RefusesOffsetsThatAreNoRanges) {
  const Groups g{.counts = {2, 3}, .in = 4, .out = 0};
  KernelCase kernel = quantize_grouped_case(DType::kF32, g);
  kernel.set(1, {0, 2, 6});
  EXPECT_THAT(message_of<DeviceError>([&] { kernel.run(); }), testing::HasSubstr("of 5"));
}

}  // namespace
}  // namespace braid
