#include "ops/scaled_grouped_linear.h"

#include "base/expect_error.h"
#include "ops/scaled_linear.h"
#include "support/grouped_copies_cases.h"

namespace braid {
namespace {

constexpr int64_t kBlock = GroupedColumns::kBlock;

constexpr double kTolerance = 1e-5;

void check_rows(bool is_dgrad) {
  for (const Groups& g : awkward_copies()) {
    for (const DType result : {DType::kF32, DType::kBF16}) {
      KernelCase kernel = scaled_grouped_case(g, is_dgrad, result);
      const std::vector<double> expected = naive_rows(kernel, g, is_dgrad);
      kernel.run(2);
      expect_near(kernel, expected, kTolerance);
    }
  }
}

TEST(ScaledGroupedLinear, EqualsTheNaiveProducts) {
  check_rows(/*is_dgrad=*/false);
}

TEST(ScaledGroupedLinearDgrad, EqualsTheNaiveProducts) {
  check_rows(/*is_dgrad=*/true);
}

// Without `accumulate` the gradient held NaN: experts without rows must get 0.
TEST(ScaledGroupedLinearWgrad, EqualsTheNaiveProducts) {
  for (const Groups& g : awkward_copies()) {
    for (const bool accumulate : {false, true}) {
      KernelCase kernel = scaled_grouped_wgrad_case(g, accumulate);
      const std::vector<double> expected = naive_wgrad(kernel, g, accumulate);
      kernel.run(2);
      expect_near(kernel, expected, kTolerance);
    }
  }
}

/// The rows [first, first + count) of operands that have g.rows() rows, or of scales columns.
std::vector<double> rows_of(const std::vector<double>& values, int64_t width, int64_t first,
                            int64_t count) {
  return {values.begin() + first * width, values.begin() + (first + count) * width};
}

std::vector<double> columns_of(const std::vector<double>& values, int64_t width, int64_t first,
                               int64_t count) {
  std::vector<double> some;
  for (size_t row = 0; row * size_t(width) < values.size(); ++row) {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(row) * width + first;
    some.insert(some.end(), begin, begin + count);
  }
  return some;
}

/// The product of one expert, as a dense one.
KernelCase dense_forward(const KernelCase& grouped, const Groups& g, int64_t e, int64_t first,
                         int64_t count) {
  const Shape x{count, g.in};
  const Shape w{g.out, g.in};
  KernelCase dense(
      {"scaled_linear",
       to_attributes(ScaledLinearAttributes{.sums = {.hopper_sums = true}}),
       {read(DType::kF8E4M3, x), read(DType::kF32, kRunScales.shape(x)), read(DType::kF8E4M3, w),
        read(DType::kF32, kSquareScales.shape(w)), write(DType::kF32, {count, g.out})}});
  dense.set(0, rows_of(grouped.values(0), g.in, first, count));
  dense.set(1, columns_of(grouped.values(1), g.rows(), first, count));
  dense.set(2, rows_of(grouped.values(2), g.in, e * g.out, g.out));
  const int64_t width = kSquareScales.shape(w)[1];
  dense.set(3, rows_of(grouped.values(3), width, e * g.out / kBlock, g.out / kBlock));
  dense.run();
  return dense;
}

// An element's sum depends on its row and its expert's weights alone.
TEST(ScaledGroupedLinear, SumsOfHopperAreThoseOfEachExpertsProduct) {
  const Groups g{.counts = {3, 0, 20}, .in = 256, .out = 128, .unused_rows = 2};
  KernelCase grouped = scaled_grouped_case(g, false, DType::kF32, {.hopper_sums = true});
  grouped.run(2);
  KernelCase ideal = scaled_grouped_case(g, false, DType::kF32);
  ideal.run(2);
  EXPECT_NE(grouped.bytes(5), ideal.bytes(5));
  for_each_expert(g, [&](int64_t e, int64_t first, int64_t count) {
    if (count > 0) {
      EXPECT_EQ(rows_of(grouped.values(5), g.out, first, count),
                dense_forward(grouped, g, e, first, count).values(4));
    }
  });
}

TEST(ScaledGroupedLinearWgrad, SumsOfHopperAreThoseOfEachExpertsProduct) {
  const Groups g{.counts = {3, 0, 140}, .in = 128, .out = 128, .unused_rows = 2};
  KernelCase grouped = scaled_grouped_wgrad_case(g, true, {.hopper_sums = true});
  const std::vector<double> before = grouped.values(5);
  const int64_t all = braid::columns_of(g);
  grouped.run(2);
  for_each_expert(g, [&](int64_t e, int64_t first, int64_t count) {
    const std::vector<double> dw = rows_of(grouped.values(5), g.in, e * g.out, g.out);
    const std::vector<double> old = rows_of(before, g.in, e * g.out, g.out);
    if (count == 0) {
      EXPECT_EQ(dw, old);
      return;
    }
    const Shape x{g.in, count};
    const Shape dy{g.out, count};
    KernelCase dense(
        {"scaled_linear_wgrad",
         to_attributes(ScaledLinearWgradAttributes{.sums = {.hopper_sums = true}}),
         {read(DType::kF8E4M3, x), read(DType::kF32, kRunScales.shape(x)), read(DType::kF8E5M2, dy),
          read(DType::kF32, kRunScales.shape(dy)), read_write(DType::kF32, {g.out, g.in})}});
    const int64_t begin = GroupedColumns::begin(first, e);
    const int64_t blocks = kRunScales.shape(x)[0];
    dense.set(0, columns_of(grouped.values(0), all, begin, count));
    dense.set(1, rows_of(grouped.values(1), g.in, begin / kBlock, blocks));
    dense.set(2, columns_of(grouped.values(2), all, begin, count));
    dense.set(3, rows_of(grouped.values(3), g.out, begin / kBlock, blocks));
    dense.set(4, old);
    dense.run();
    EXPECT_EQ(dw, dense.values(4));
  });
}

TEST(ScaledGroupedLinear, DoesNotDependOnTheNumberOfWorkers) {
  const Groups g{.counts = {129, 0, 500, 3, 301}, .in = 256, .out = 384, .unused_rows = 5};
  expect_same_for_any_workers([&] { return scaled_grouped_case(g, false, DType::kBF16); });
  expect_same_for_any_workers([&] { return scaled_grouped_case(g, true, DType::kBF16); });
  expect_same_for_any_workers([&] { return scaled_grouped_wgrad_case(g, true); });
}

TEST(ScaledGroupedLinear, RefusesOffsetsThatAreNoRanges) {
  const Groups g{.counts = {2, 3}, .in = 128, .out = 128};
  KernelCase kernel = scaled_grouped_case(g, false, DType::kF32);
  kernel.set(4, {0, 6, 5});
  EXPECT_THAT(message_of<DeviceError>([&] { kernel.run(); }), testing::HasSubstr("of 5"));
}

}  // namespace
}  // namespace braid
