#include "ops/optimizer.h"

#include <limits>

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using OptimizerCudaTest = CudaKernelTest;

constexpr int64_t kCounts[] = {1, 3, 31, 1024, 32768, 32769, 1000003};
constexpr DType kF32 = DType::kF32;

KernelCase squared_norm_case(DType dtype, int64_t count) {
  return KernelCase({"squared_norm", {}, {read(dtype, {count}), write(DType::kF64, {1})}});
}

KernelCase clip_scale_case(std::vector<double> partials, double max_norm) {
  KernelCase kernel_case({"clip_scale",
                          to_attributes(ClipScaleAttributes{.max_norm = max_norm}),
                          {read(DType::kF64, {static_cast<int64_t>(partials.size())}),
                           write(kF32, {1}), write(kF32, {1})}});
  kernel_case.set(0, partials);
  return kernel_case;
}

KernelCase adamw_case(int64_t count, double scale, bool has_param) {
  const Shape n{count};
  std::vector<OperandSpec> operands = {read(kF32, n),       read(kF32, {1}),
                                       read(kF32, {3}),     read_write(kF32, n),
                                       read_write(kF32, n), read_write(kF32, n)};
  if (has_param) {
    operands.push_back(write(DType::kBF16, n));
  }
  const AdamwAttributes attributes{.weight_decay = 0.1, .has_param = has_param};
  KernelCase kernel_case({"adamw", to_attributes(attributes), std::move(operands)});
  TestRandom random(3);
  kernel_case.set(1, {scale});
  kernel_case.set(2, {3e-2, 1 - std::pow(0.9, 7), 1 - std::pow(0.95, 7)});
  kernel_case.set(5, random.uniforms(count, 0.0, 1.0));
  return kernel_case;
}

TEST_F(OptimizerCudaTest, SquaredNormEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const int64_t count : kCounts) {
      expect_equals_cpu(
          squared_norm_case(dtype, count), context(),
          [](DType) { return Tolerance{.relative = 1e-13}; },
          fmt::format("{} [{}]", dtype_name(dtype), count));
    }
  }
}

TEST_F(OptimizerCudaTest, SumEqualsTheCpu) {
  for (const int64_t count : {1, 2, 33, 5000}) {
    KernelCase kernel_case({"sum", {}, {read(DType::kF64, {count}), write(DType::kF64, {1})}});
    kernel_case.set(0, TestRandom(count).uniforms(count, 0.0, 4.0));
    expect_equals_cpu(
        std::move(kernel_case), context(), [](DType) { return Tolerance{.relative = 1e-13}; },
        fmt::format("[{}]", count));
  }
}

TEST_F(OptimizerCudaTest, ClipScaleEqualsTheCpu) {
  TestRandom random(9);
  const auto tolerance = [](DType) { return Tolerance{.relative = 1e-6}; };
  for (const int64_t count : {1, 2, 33, 5000}) {
    for (const double max_norm : {0.0, 1.0, 1e6}) {
      const KernelCase kernel_case = clip_scale_case(random.uniforms(count, 0.0, 4.0), max_norm);
      KernelCase expected = clip_scale_case(kernel_case.values(0), max_norm);
      KernelCase actual = clip_scale_case(kernel_case.values(0), max_norm);
      expected.run();
      run_on_cuda(actual, context());
      for (const size_t i : {1, 2}) {
        expect_close(actual.values(i), expected.values(i), tolerance(kF32),
                     fmt::format("[{}] max_norm {} operand {}", count, max_norm, i));
      }
    }
  }
}

TEST_F(OptimizerCudaTest, ANormThatIsNotFiniteGivesScaleZero) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    KernelCase kernel_case = clip_scale_case({1.0, bad, 2.0}, 1.0);
    run_on_cuda(kernel_case, context());
    EXPECT_FALSE(std::isfinite(kernel_case.values(1)[0]));
    EXPECT_EQ(kernel_case.values(2)[0], 0.0);
  }
}

// The CPU's formula in fp32 too; they differ in which products are fused into sums.
TEST_F(OptimizerCudaTest, AdamwEqualsTheCpu) {
  for (const int64_t count : kCounts) {
    for (const bool has_param : {false, true}) {
      KernelCase expected = adamw_case(count, 0.7, has_param);
      KernelCase actual = adamw_case(count, 0.7, has_param);
      expected.run();
      run_on_cuda(actual, context());
      for (const size_t i : {3, 4, 5}) {
        expect_close(actual.values(i), expected.values(i), {.absolute = 3e-7, .relative = 1e-6},
                     fmt::format("[{}] operand {}", count, i));
      }
      if (has_param) {
        std::vector<double> rounded = actual.values(3);
        for (double& value : rounded) {
          value = rounded_to(DType::kBF16, value);
        }
        expect_close(actual.values(6), rounded, {}, "param");
      }
    }
  }
}

TEST_F(OptimizerCudaTest, ScaleZeroChangesNothingButWritesTheParameter) {
  const KernelCase before = adamw_case(1003, 0.0, true);
  KernelCase after = adamw_case(1003, 0.0, true);
  after.set_all(0, std::numeric_limits<double>::quiet_NaN());
  run_on_cuda(after, context());
  for (const size_t i : {3, 4, 5}) {
    EXPECT_TRUE(after.bytes(i) == before.bytes(i)) << i;
  }
  expect_close(after.values(6), before.values(3), rounded_once(0)(DType::kBF16), "param");
}

TEST_F(OptimizerCudaTest, IsBitwiseRepeatable) {
  for (const DType dtype : kCudaDtypes) {
    expect_repeatable([&] { return squared_norm_case(dtype, 1000003); }, context());
  }
  TestRandom random(2);
  const std::vector<double> partials = random.uniforms(1500, 0.0, 1.0);
  expect_repeatable([&] { return clip_scale_case(partials, 1.0); }, context());
  expect_repeatable([&] { return adamw_case(100003, 0.5, true); }, context());
  expect_repeatable([&] { return adamw_case(100000, 0.5, false); }, context());
}

}  // namespace
}  // namespace braid
