#include "ops/elementwise.h"

#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kSizes[] = {1, 7, 64, 1009};
constexpr int64_t kSplitSize = 3 * 16384 + 5;

KernelCase add_case(DType dtype, int64_t n) {
  return KernelCase({"add", {}, {read(dtype, {n}), read(dtype, {n}), write(dtype, {n})}});
}

KernelCase cast_case(DType from, DType to, int64_t n) {
  return KernelCase({"cast", {}, {read(from, {n}), write(to, {n})}});
}

KernelCase fill_case(DType dtype, int64_t n, double value) {
  return KernelCase({"fill", to_attributes(FillAttributes{.value = value}), {write(dtype, {n})}});
}

TEST(Add, IsTheRoundedSum) {
  for (const DType dtype : kFloatDtypes) {
    for (const int64_t n : kSizes) {
      KernelCase kernel = add_case(dtype, n);
      const auto a = kernel.values(0);
      const auto b = kernel.values(1);
      kernel.run();
      std::vector<double> expected;
      for (size_t i = 0; i < a.size(); ++i) {
        expected.push_back(rounded_to(dtype, rounded_to(wide(dtype), a[i] + b[i])));
      }
      EXPECT_EQ(kernel.values(2), expected);
    }
  }
}

// sqrt(640) is 25.25 in bf16, and that is what multiplies.
TEST(Scale, MultipliesByTheRoundedFactor) {
  const double factor = std::sqrt(640.0);
  for (const DType dtype : kFloatDtypes) {
    for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{1009}, kSplitSize}) {
      KernelCase kernel({"scale",
                         to_attributes(ScaleAttributes{.factor = factor}),
                         {read(dtype, {n}), write(dtype, {n})}});
      std::vector<double> expected = kernel.values(0);
      kernel.run(3);
      for (double& x : expected) {
        x = rounded_to(dtype, rounded_to(wide(dtype), x * rounded_to(dtype, factor)));
      }
      EXPECT_EQ(kernel.values(1), expected) << dtype_name(dtype);
    }
  }
  EXPECT_EQ(rounded_to(DType::kBF16, factor), 25.25);
}

TEST(Add, KeepsSignedZerosInfinitiesAndNan) {
  KernelCase kernel = add_case(DType::kF32, 4);
  kernel.set(0, {-0.0, kInfinity, kInfinity, kNan});
  kernel.set(1, {-0.0, 1.0, -kInfinity, 1.0});
  kernel.run();
  const auto c = kernel.values(2);
  EXPECT_TRUE(std::signbit(c[0]));
  EXPECT_EQ(c[1], kInfinity);
  EXPECT_TRUE(std::isnan(c[2]));
  EXPECT_TRUE(std::isnan(c[3]));
}

KernelCase accumulate_case(DType dtype, int64_t n) {
  return KernelCase({"accumulate", {}, {read(dtype, {n}), read_write(wide(dtype), {n})}});
}

TEST(Accumulate, AddsInTheDtypeOfTheSum) {
  for (const DType dtype : kFloatDtypes) {
    for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{1009}, kSplitSize}) {
      KernelCase kernel = accumulate_case(dtype, n);
      const auto x = kernel.values(0);
      std::vector<double> expected = kernel.values(1);
      for (size_t i = 0; i < x.size(); ++i) {
        expected[i] = rounded_to(wide(dtype), expected[i] + x[i]);
      }
      kernel.run();
      EXPECT_EQ(kernel.values(0), x);
      EXPECT_EQ(kernel.values(1), expected);
    }
  }
}

// 256 + 1 is 256 in bf16.
TEST(Accumulate, LosesNothingOfSmallAddends) {
  KernelCase kernel = accumulate_case(DType::kBF16, 1);
  kernel.set(0, {1.0});
  kernel.set(1, {256.0});
  for (int i = 0; i < 8; ++i) {
    kernel.run();
  }
  EXPECT_EQ(kernel.values(1), std::vector<double>{264.0});
}

TEST(Identity, CopiesBytes) {
  for (const DType dtype : kFloatDtypes) {
    KernelCase kernel(
        {"identity", {{"group", int64_t{0}}}, {read(dtype, {3, 11}), write(dtype, {3, 11})}});
    kernel.run();
    EXPECT_EQ(kernel.values(1), kernel.values(0));
  }
}

TEST(Cast, RoundsToNearestEven) {
  constexpr std::pair<DType, DType> kPairs[] = {{DType::kF32, DType::kBF16},
                                                {DType::kBF16, DType::kF32},
                                                {DType::kF32, DType::kF64},
                                                {DType::kF64, DType::kF32}};
  for (const auto& [from, to] : kPairs) {
    for (const int64_t n : kSizes) {
      KernelCase kernel = cast_case(from, to, n);
      std::vector<double> expected = kernel.values(0);
      kernel.run();
      for (double& value : expected) {
        value = rounded_to(to, value);
      }
      EXPECT_EQ(kernel.values(1), expected);
    }
  }
}

TEST(Cast, RoundsTiesDenormalsAndLimitsOfBfloat16) {
  KernelCase kernel = cast_case(DType::kF32, DType::kBF16, 8);
  // bf16 has 8 bits: 1 + 2^-8 and 1 + 3 * 2^-8 lie half way. 3.3961776e38 lies beyond the last
  // number that rounds to bf16's largest, 3.3895314e38.
  kernel.set(0, {1 + 0x1p-8, 1 + 0x3p-8, -0.0, 0x1p-133, 3.3961776e38, -kInfinity, kNan, 0x1p-149});
  kernel.run();
  const auto y = kernel.values(1);
  EXPECT_EQ(y[0], 1.0);
  EXPECT_EQ(y[1], 1 + 0x1p-6);
  EXPECT_TRUE(y[2] == 0 && std::signbit(y[2]));
  EXPECT_EQ(y[3], 0x1p-133);  // the smallest denormal of bf16
  EXPECT_EQ(y[4], kInfinity);
  EXPECT_EQ(y[5], -kInfinity);
  EXPECT_TRUE(std::isnan(y[6]));
  EXPECT_EQ(y[7], 0.0);
}

TEST(Cast, RefusesPairsWithoutKernel) {
  EXPECT_THROW(cast_case(DType::kF64, DType::kBF16, 3).run(), InternalError);
}

TEST(Copy, KeepsEveryBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32}) {
    for (const int64_t n : {int64_t{1}, int64_t{1009}, 2 * kSplitSize}) {
      KernelCase kernel({"copy", {}, {read(dtype, {n}), write(dtype, {n})}});
      kernel.run(2);
      EXPECT_TRUE(kernel.bytes(1) == kernel.bytes(0));
    }
  }
}

TEST(Fill, WritesZerosOfAnyType) {
  for (const DType dtype : {DType::kI32, DType::kF8E4M3, DType::kBF16}) {
    KernelCase kernel = fill_case(dtype, 129, 0.0);
    kernel.run(2);
    EXPECT_EQ(kernel.values(0), std::vector<double>(129, 0.0));
  }
  KernelCase negative = fill_case(DType::kF32, 3, -0.0);
  negative.run();
  EXPECT_TRUE(std::signbit(negative.values(0)[2]));
}

TEST(Fill, WritesTheRoundedValueEverywhere) {
  for (const DType dtype : kFloatDtypes) {
    for (const int64_t n : {int64_t{1}, int64_t{129}, kSplitSize}) {
      KernelCase kernel = fill_case(dtype, n, 0.1);
      kernel.run(2);
      EXPECT_EQ(kernel.values(0),
                std::vector<double>(static_cast<size_t>(n), rounded_to(dtype, 0.1)));
    }
  }
}

TEST(Elementwise, DoesNotDependOnTheNumberOfWorkers) {
  expect_same_for_any_workers([] { return add_case(DType::kBF16, kSplitSize); });
  expect_same_for_any_workers([] { return cast_case(DType::kF32, DType::kBF16, kSplitSize); });
  expect_same_for_any_workers([] { return fill_case(DType::kF32, kSplitSize, 2.5); });
}

}  // namespace
}  // namespace braid
