#include "ops/optimizer.h"

#include <algorithm>
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

KernelCase adamw_case(int64_t count, double scale, bool has_param, DType moments = kF32) {
  const Shape n{count};
  const bool is_narrow = moments == DType::kBF16;
  std::vector<OperandSpec> operands = {
      read(kF32, n),       read(kF32, {1}),        read(kF32, {is_narrow ? 4 : 3}),
      read_write(kF32, n), read_write(moments, n), read_write(moments, n)};
  if (has_param) {
    operands.push_back(write(DType::kBF16, n));
  }
  const AdamwAttributes attributes{
      .weight_decay = 0.1, .has_param = has_param, .group = {.rate = 0.5}};
  KernelCase kernel_case({"adamw", to_attributes(attributes), std::move(operands)});
  TestRandom random(3);
  kernel_case.set(1, {scale});
  std::vector<double> scalars{3e-2, 1 - std::pow(0.9, 7), 1 - std::pow(0.95, 7), 7};
  scalars.resize(is_narrow ? 4 : 3);
  kernel_case.set(2, scalars);
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

/// Numbers with which fp32 computes the new moments without rounding, fused or not: betas of 1/2
/// and 3/4, gradients that are multiples of 2^-10, moments that are multiples of 2^-8, all below 1.
/// New moments have up to 22 bits; bf16 has 8.
KernelCase exact_moments_case(int64_t count) {
  KernelCase kernel_case = adamw_case(count, 1.0, true, DType::kBF16);
  KernelCase exact({"adamw",
                    to_attributes(AdamwAttributes{
                        .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.1, .has_param = true}),
                    kernel_case.spec().operands});
  TestRandom random(5);
  const auto multiples = [&](double unit, int64_t least, int64_t end) {
    std::vector<double> list(static_cast<size_t>(count));
    std::ranges::generate(
        list, [&] { return unit * static_cast<double>(least + random.below(end - least)); });
    return list;
  };
  exact.set(0, multiples(0x1p-10, -1023, 1024));
  exact.set(1, kernel_case.values(1));
  exact.set(2, kernel_case.values(2));
  exact.set(4, multiples(0x1p-8, -255, 256));
  exact.set(5, multiples(0x1p-8, 0, 256));
  return exact;
}

TEST_F(OptimizerCudaTest, Bf16MomentsHaveTheBitsOfTheCpuWhereFp32IsExact) {
  for (const int64_t count : kCounts) {
    KernelCase expected = exact_moments_case(count);
    KernelCase actual = exact_moments_case(count);
    expected.run(2);
    run_on_cuda(actual, context());
    for (const size_t i : {4, 5}) {
      EXPECT_TRUE(actual.bytes(i) == expected.bytes(i)) << count << " operand " << i;
    }
    expect_close(actual.values(3), expected.values(3), {.absolute = 3e-7, .relative = 1e-6},
                 fmt::format("[{}] weight", count));
  }
}

// Random bits are equal; fp32 results differ in their last bits, of which two in 65,536 decide.
TEST_F(OptimizerCudaTest, Bf16MomentsDifferFromTheCpuInFewElements) {
  constexpr int64_t kCount = 1000003;
  KernelCase expected = adamw_case(kCount, 0.7, true, DType::kBF16);
  KernelCase actual = adamw_case(kCount, 0.7, true, DType::kBF16);
  expected.run(2);
  run_on_cuda(actual, context());
  for (const size_t i : {4, 5}) {
    const auto ours = actual.values(i);
    const auto theirs = expected.values(i);
    expect_close(ours, theirs, {.absolute = 1e-6, .relative = 0x1p-7});
    int64_t num_different = 0;
    for (size_t at = 0; at < ours.size(); ++at) {
      num_different += ours[at] != theirs[at] ? 1 : 0;
    }
    EXPECT_LT(num_different, kCount / 1000) << i;
  }
}

TEST_F(OptimizerCudaTest, ScaleZeroChangesNothingButWritesTheParameter) {
  for (const DType moments : {kF32, DType::kBF16}) {
    const KernelCase before = adamw_case(1003, 0.0, true, moments);
    KernelCase after = adamw_case(1003, 0.0, true, moments);
    after.set_all(0, std::numeric_limits<double>::quiet_NaN());
    run_on_cuda(after, context());
    for (const size_t i : {3, 4, 5}) {
      EXPECT_TRUE(after.bytes(i) == before.bytes(i)) << i;
    }
    expect_close(after.values(6), before.values(3), rounded_once(0)(DType::kBF16), "param");
  }
}

KernelCase average_case(int64_t count, double scale) {
  KernelCase kernel_case({"average_weights",
                          to_attributes(AverageWeightsAttributes{.decay = 0.75}),
                          {read(kF32, {count}), read(kF32, {1}), read_write(kF32, {count})}});
  kernel_case.set(1, {scale});
  return kernel_case;
}

// The product with 0.25 is exact, so both round alike whether they fuse it into the sum or not.
TEST_F(OptimizerCudaTest, AveragesOfWeightsHaveTheBitsOfTheCpu) {
  for (const int64_t count : kCounts) {
    for (const double scale : {0.0, 0.7}) {
      KernelCase expected = average_case(count, scale);
      KernelCase actual = average_case(count, scale);
      expected.run(2);
      run_on_cuda(actual, context());
      EXPECT_TRUE(actual.bytes(2) == expected.bytes(2)) << count << " elements, scale " << scale;
    }
  }
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
  expect_repeatable([&] { return adamw_case(100003, 0.5, true, DType::kBF16); }, context());
}

}  // namespace
}  // namespace braid
