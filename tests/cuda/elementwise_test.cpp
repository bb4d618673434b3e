#include "ops/elementwise.h"

#include <limits>

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using ElementwiseCudaTest = CudaKernelTest;

constexpr int64_t kCounts[] = {1, 3, 8, 31, 4096, 100003};

KernelCase add_case(DType dtype, int64_t count) {
  return KernelCase(
      {"add", {}, {read(dtype, {count}), read(dtype, {count}), write(dtype, {count})}});
}

KernelCase cast_case(DType from, DType to, int64_t count) {
  KernelCase kernel_case({"cast", {}, {read(from, {count}), write(to, {count})}});
  std::vector<double> x = kernel_case.values(0);
  // Halfway between two bf16 numbers, even below and above; then what is not a number, or not in
  // range.
  const double special[] = {1.00390625,
                            1.01171875,
                            -1.00390625,
                            1e-40,
                            3.4e38,
                            0.0,
                            -0.0,
                            std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()};
  for (size_t i = 0; i < std::min(x.size(), std::size(special)); ++i) {
    x[i] = special[i];
  }
  kernel_case.set(0, x);
  return kernel_case;
}

KernelCase fill_case(DType dtype, int64_t count, double value) {
  return KernelCase(
      {"fill", to_attributes(FillAttributes{.value = value}), {write(dtype, {count})}});
}

KernelCase copy_case(DType dtype, int64_t count) {
  return KernelCase({"copy", {}, {read(dtype, {count}), write(dtype, {count})}});
}

KernelCase accumulate_case(DType dtype, int64_t count) {
  return KernelCase({"accumulate", {}, {read(dtype, {count}), read_write(wide(dtype), {count})}});
}

TEST_F(ElementwiseCudaTest, ScalesByTheRoundedFactor) {
  for (const int64_t count : kCounts) {
    for (const DType dtype : kCudaDtypes) {
      expect_same_as_cpu(
          [&] {
            return KernelCase({"scale",
                               to_attributes(ScaleAttributes{.factor = 25.298221281347036}),
                               {read(dtype, {count}), write(dtype, {count})}});
          },
          context(), fmt::format("[{}]", count));
    }
  }
}

TEST_F(ElementwiseCudaTest, GivesTheNumbersOfTheCpu) {
  for (const int64_t count : kCounts) {
    const std::string name = fmt::format("[{}]", count);
    for (const DType dtype : kCudaDtypes) {
      expect_same_as_cpu([&] { return add_case(dtype, count); }, context(), name);
      expect_same_as_cpu([&] { return copy_case(dtype, count); }, context(), name);
      expect_same_as_cpu([&] { return accumulate_case(dtype, count); }, context(), name);
    }
    for (const DType dtype : kFloatDtypes) {
      expect_same_as_cpu([&] { return fill_case(dtype, count, 0.1); }, context(), name);
    }
    for (const auto& [from, to] :
         {std::pair{DType::kF32, DType::kBF16}, std::pair{DType::kBF16, DType::kF32},
          std::pair{DType::kF32, DType::kF64}, std::pair{DType::kF64, DType::kF32}}) {
      const DType source = from;
      const DType target = to;
      expect_same_as_cpu([&] { return cast_case(source, target, count); }, context(), name);
    }
  }
}

TEST_F(ElementwiseCudaTest, IsBitwiseRepeatable) {
  constexpr int64_t kCount = 10007;
  for (const DType dtype : kCudaDtypes) {
    expect_repeatable([&] { return add_case(dtype, kCount); }, context());
    expect_repeatable([&] { return copy_case(dtype, kCount); }, context());
    expect_repeatable([&] { return accumulate_case(dtype, kCount); }, context());
    expect_repeatable([&] { return fill_case(dtype, kCount, -0.3); }, context());
  }
  expect_repeatable([&] { return cast_case(DType::kF32, DType::kBF16, kCount); }, context());
  expect_repeatable([&] { return cast_case(DType::kBF16, DType::kF32, kCount); }, context());
}

}  // namespace
}  // namespace braid
