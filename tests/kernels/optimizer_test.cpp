#include "ops/optimizer.h"

#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kSizes[] = {1, 7, 64, 1009, 70001};
constexpr int64_t kSplitSize = 3 * 32768 + 11;

KernelCase squared_norm_case(DType dtype, int64_t n) {
  return KernelCase({"squared_norm", {}, {read(dtype, {n}), write(DType::kF64, {1})}});
}

TEST(SquaredNorm, SumsInDouble) {
  for (const DType dtype : kFloatDtypes) {
    for (const int64_t n : kSizes) {
      KernelCase kernel = squared_norm_case(dtype, n);
      const auto x = kernel.values(0);
      kernel.run(2);
      // All terms are positive: n additions in double are off by at most n half units.
      EXPECT_NEAR(kernel.values(1)[0], dot(x, x), dot(x, x) * static_cast<double>(n) * 0x1p-53);
    }
  }
}

TEST(SquaredNorm, OfLargeValuesDoesNotOverflow) {
  KernelCase kernel = squared_norm_case(DType::kF32, 3);
  kernel.set_all(0, 1e30);
  kernel.run();
  EXPECT_NEAR(kernel.values(1)[0] / 3e60, 1.0, 1e-6);
}

TEST(SquaredNorm, KeepsInfinityAndNan) {
  KernelCase kernel = squared_norm_case(DType::kF32, 40000);
  auto x = kernel.values(0);
  x[39999] = -kInfinity;
  kernel.set(0, x);
  kernel.run(2);
  EXPECT_EQ(kernel.values(1)[0], kInfinity);
  x[5] = std::numeric_limits<double>::quiet_NaN();
  kernel.set(0, x);
  kernel.run(2);
  EXPECT_TRUE(std::isnan(kernel.values(1)[0]));
}

TEST(Sum, IsInAscendingOrder) {
  const std::vector<double> values{1e16, 1.0, -1e16, 1.0, 0.25};
  KernelCase kernel({"sum", {}, {read(DType::kF64, {5}), write(DType::kF64, {1})}});
  kernel.set(0, values);
  kernel.run();
  EXPECT_EQ(kernel.values(1)[0], 1.25);  // 1e16 + 1 is 1e16
}

struct Clip {
  double norm;
  double scale;
};

Clip clip(double max_norm, const std::vector<double>& partials) {
  const auto count = static_cast<int64_t>(partials.size());
  KernelCase kernel(
      {"clip_scale",
       to_attributes(ClipScaleAttributes{.max_norm = max_norm}),
       {read(DType::kF64, {count}), write(DType::kF32, {1}), write(DType::kF32, {1})}});
  kernel.set(0, partials);
  kernel.run();
  return {kernel.values(1)[0], kernel.values(2)[0]};
}

TEST(ClipScale, IsThatOfClipGradNorm) {
  const Clip clipped = clip(1.0, {9.0, 16.0});
  EXPECT_EQ(clipped.norm, 5.0);
  EXPECT_NEAR(clipped.scale, 1.0 / (5.0 + 1e-6), 1e-8);
  EXPECT_EQ(clip(10.0, {9.0, 16.0}).scale, 1.0);
  EXPECT_EQ(clip(0.0, {9.0, 16.0}).scale, 1.0);  // no limit
  EXPECT_EQ(clip(1.0, {0.0}).scale, 1.0);
}

TEST(ClipScale, IsZeroForGradientsThatAreNotFinite) {
  for (const double max_norm : {0.0, 1.0}) {
    const Clip infinite = clip(max_norm, {1.0, kInfinity});
    EXPECT_EQ(infinite.norm, kInfinity);
    EXPECT_EQ(infinite.scale, 0.0);
    const Clip nan = clip(max_norm, {std::numeric_limits<double>::quiet_NaN()});
    EXPECT_TRUE(std::isnan(nan.norm));
    EXPECT_EQ(nan.scale, 0.0);
  }
}

constexpr AdamwAttributes kAdamw{
    .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .has_param = true};

KernelCase adamw_case(int64_t n, AdamwAttributes attributes = kAdamw) {
  std::vector<OperandSpec> operands = {read(DType::kF32, {n}),       read(DType::kF32, {1}),
                                       read(DType::kF32, {3}),       read_write(DType::kF32, {n}),
                                       read_write(DType::kF32, {n}), read_write(DType::kF32, {n})};
  if (attributes.has_param) {
    operands.push_back(write(DType::kBF16, {n}));
  }
  KernelCase kernel({"adamw", to_attributes(attributes), operands});
  kernel.set(1, {0.5});
  kernel.set(2, {1e-2, 1 - std::pow(0.9, 3), 1 - std::pow(0.95, 3)});
  kernel.set(5, TestRandom(8).uniforms(n, 0, 1));  // a mean of squares is never negative
  return kernel;
}

struct AdamwState {
  std::vector<double> weight;
  std::vector<double> exp_avg;
  std::vector<double> exp_avg_sq;
};

/// Algorithm 2 of the paper, as ops/optimizer.h states it, in double.
AdamwState naive_adamw(const KernelCase& kernel, const AdamwAttributes& a) {
  const auto grad = kernel.values(0);
  const double scale = kernel.values(1)[0];
  const auto scalars = kernel.values(2);
  AdamwState s{kernel.values(3), kernel.values(4), kernel.values(5)};
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * scale;
    s.exp_avg[i] = a.beta1 * s.exp_avg[i] + (1 - a.beta1) * g;
    s.exp_avg_sq[i] = a.beta2 * s.exp_avg_sq[i] + (1 - a.beta2) * g * g;
    s.weight[i] -= scalars[0] * a.weight_decay * s.weight[i];
    s.weight[i] -= scalars[0] * (s.exp_avg[i] / scalars[1]) /
                   (std::sqrt(s.exp_avg_sq[i] / scalars[2]) + a.epsilon);
  }
  return s;
}

TEST(Adamw, FollowsThePaper) {
  for (const int64_t n : kSizes) {
    KernelCase kernel = adamw_case(n);
    const AdamwState expected = naive_adamw(kernel, kAdamw);
    kernel.run(2);
    // Some ten roundings each of values up to 1.
    const Tolerance tolerance{.absolute = 4 * 0x1p-24, .relative = 8 * 0x1p-24};
    expect_close(kernel.values(3), expected.weight, tolerance, "weight");
    expect_close(kernel.values(4), expected.exp_avg, tolerance, "exp_avg");
    expect_close(kernel.values(5), expected.exp_avg_sq, tolerance, "exp_avg_sq");
    std::vector<double> param = kernel.values(3);
    for (double& value : param) {
      value = rounded_to(DType::kBF16, value);
    }
    EXPECT_EQ(kernel.values(6), param);
  }
}

TEST(Adamw, WorksWithoutParamAndWithoutDecay) {
  AdamwAttributes attributes = kAdamw;
  attributes.has_param = false;
  attributes.weight_decay = 0;
  KernelCase kernel = adamw_case(37, attributes);
  const AdamwState expected = naive_adamw(kernel, attributes);
  kernel.run();
  expect_close(kernel.values(3), expected.weight,
               {.absolute = 4 * 0x1p-24, .relative = 8 * 0x1p-24});
}

// Gradients may be infinite or NaN in a step that clip_scale has given the scale 0.
TEST(Adamw, ChangesNothingIfTheScaleIsZero) {
  KernelCase kernel = adamw_case(1009);
  kernel.set_all(0, kInfinity);
  kernel.set(1, {0.0});
  const AdamwState before{kernel.values(3), kernel.values(4), kernel.values(5)};
  kernel.run();
  EXPECT_EQ(kernel.values(3), before.weight);
  EXPECT_EQ(kernel.values(4), before.exp_avg);
  EXPECT_EQ(kernel.values(5), before.exp_avg_sq);
  std::vector<double> param = before.weight;
  for (double& value : param) {
    value = rounded_to(DType::kBF16, value);
  }
  EXPECT_EQ(kernel.values(6), param);
}

TEST(Optimizer, DoesNotDependOnTheNumberOfWorkers) {
  expect_same_for_any_workers([] { return squared_norm_case(DType::kF32, kSplitSize); });
  expect_same_for_any_workers([] { return adamw_case(kSplitSize); });
}

}  // namespace
}  // namespace braid
