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

/// The scalars of a step.
std::vector<double> scalars_of(const AdamwAttributes& attributes, int64_t step, DType moments) {
  const auto all = adamw_scalars(1e-2, attributes.beta1, attributes.beta2, step);
  return {all.begin(), all.begin() + (moments == DType::kBF16 ? 4 : 3)};
}

KernelCase adamw_case(int64_t n, AdamwAttributes attributes = kAdamw, DType moments = DType::kF32) {
  std::vector<OperandSpec> operands = {read(DType::kF32, {n}),
                                       read(DType::kF32, {1}),
                                       read(DType::kF32, {moments == DType::kBF16 ? 4 : 3}),
                                       read_write(DType::kF32, {n}),
                                       read_write(moments, {n}),
                                       read_write(moments, {n})};
  if (attributes.has_param) {
    operands.push_back(write(DType::kBF16, {n}));
  }
  KernelCase kernel({"adamw", to_attributes(attributes), operands});
  kernel.set(1, {0.5});
  kernel.set(2, scalars_of(attributes, 3, moments));
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
class AdamwMoments : public testing::TestWithParam<DType> {};

TEST_P(AdamwMoments, ChangeNotIfTheScaleIsZero) {
  KernelCase kernel = adamw_case(1009, kAdamw, GetParam());
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

INSTANTIATE_TEST_SUITE_P(DTypes, AdamwMoments, testing::Values(DType::kF32, DType::kBF16));

KernelCase average_case(int64_t n, double decay, double scale) {
  KernelCase kernel(
      {"average_weights",
       to_attributes(AverageWeightsAttributes{.decay = decay}),
       {read(DType::kF32, {n}), read(DType::kF32, {1}), read_write(DType::kF32, {n})}});
  kernel.set(1, {scale});
  return kernel;
}

TEST(Optimizer, DoesNotDependOnTheNumberOfWorkers) {
  expect_same_for_any_workers([] { return squared_norm_case(DType::kF32, kSplitSize); });
  expect_same_for_any_workers([] { return adamw_case(kSplitSize); });
  expect_same_for_any_workers([] { return average_case(kSplitSize, 0.9, 1.0); });
  expect_same_for_any_workers([] { return adamw_case(kSplitSize, kAdamw, DType::kBF16); });
}

// A moment is one of the two bf16 numbers around the fp32 result, which are a unit apart: 2^-7 of
// the result at most. The weight follows the result before it is rounded.
TEST(AdamwWithBf16Moments, FollowsThePaperUpToOneRounding) {
  for (const int64_t n : kSizes) {
    KernelCase kernel = adamw_case(n, kAdamw, DType::kBF16);
    const AdamwState expected = naive_adamw(kernel, kAdamw);
    kernel.run(2);
    const Tolerance of_f32{.absolute = 4 * 0x1p-24, .relative = 8 * 0x1p-24};
    expect_close(kernel.values(3), expected.weight, of_f32, "weight");
    const Tolerance unit{.absolute = of_f32.absolute, .relative = 0x1p-7 + of_f32.relative};
    expect_close(kernel.values(4), expected.exp_avg, unit, "exp_avg");
    expect_close(kernel.values(5), expected.exp_avg_sq, unit, "exp_avg_sq");
  }
}

// What an element becomes does not depend on where it is: shards of any layout have equal bits.
TEST(AdamwWithBf16Moments, RoundsAnElementAlikeAtAnyPlace) {
  constexpr int64_t kCount = 1009;
  KernelCase forward = adamw_case(kCount, kAdamw, DType::kBF16);
  KernelCase backward = adamw_case(kCount, kAdamw, DType::kBF16);
  const auto reversed = [](std::vector<double> list) {
    std::ranges::reverse(list);
    return list;
  };
  for (const size_t i : {0, 3, 4, 5}) {
    backward.set(i, reversed(forward.values(i)));
  }
  forward.run();
  backward.run(2);
  for (const size_t i : {3, 4, 5, 6}) {
    EXPECT_EQ(backward.values(i), reversed(forward.values(i))) << i;
  }
}

constexpr AdamwAttributes kSlow{
    .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.0, .has_param = false};

/// Weights differ, all else is the same for all elements: they take different ways.
KernelCase slow_case(int64_t n, double grad) {
  KernelCase kernel = adamw_case(n, kSlow, DType::kBF16);
  kernel.set(1, {1.0});
  kernel.set_all(0, grad);
  kernel.set_all(4, 0.0);
  kernel.set_all(5, 0.0);
  return kernel;
}

double mean_of(const std::vector<double>& list) {
  double sum = 0;
  for (const double value : list) {
    sum += value;
  }
  return sum / static_cast<double>(list.size());
}

// With beta2 = 0.999 a step moves exp_avg_sq by a thousandth of what is left, and stays in place if
// that is less than half a unit and rounded to nearest.
TEST(AdamwWithBf16Moments, SmallChangesOfTheSecondMomentAddUp) {
  constexpr int64_t kCount = 512;
  constexpr int64_t kSteps = 3000;
  KernelCase kernel = slow_case(kCount, 1.0);
  double to_nearest = 0;
  for (int64_t step = 1; step <= kSteps; ++step) {
    kernel.set(2, scalars_of(kSlow, step, DType::kBF16));
    kernel.run();
    to_nearest = rounded_to(DType::kBF16, to_nearest + 1e-3 * (1.0 - to_nearest));
  }
  EXPECT_LT(to_nearest, 0.3);
  // One element is off by up to 5% (a random walk of units of 2^-8, drawn back by 1e-3 per step),
  // the mean of 512 by 0.2%.
  EXPECT_NEAR(mean_of(kernel.values(5)), 1 - std::pow(0.999, kSteps), 0.01);
  EXPECT_NEAR(mean_of(kernel.values(4)), 1.0, 0.001);
}

// One step from zero: m = 0.1 g and v = 0.001 g^2, between two bf16 numbers. The standard error of
// the mean is at most half a unit / sqrt(n).
TEST(AdamwWithBf16Moments, MeanOfManyRoundingsIsTheFloat) {
  constexpr int64_t kCount = 100'000;
  for (const double grad : {0.7, -1.3e-3}) {
    KernelCase kernel = slow_case(kCount, grad);
    kernel.run();
    const auto g = static_cast<double>(static_cast<float>(grad));
    for (const auto& [operand, expected] :
         {std::pair{size_t{4}, 0.1 * g}, {size_t{5}, 0.001 * g * g}}) {
      const auto rounded = kernel.values(operand);
      const auto [least, largest] = std::ranges::minmax(rounded);
      EXPECT_LT(least, largest) << "both neighbours occur";
      const double error = (largest - least) / 2 / std::sqrt(static_cast<double>(kCount));
      EXPECT_NEAR(mean_of(rounded), expected, 5 * error + std::abs(expected) * 0x1p-22);
    }
  }
}

TEST(AdamwWithBf16Moments, ZeroStaysZeroAndNanIsSeen) {
  constexpr int64_t kCount = 300;
  KernelCase zero = slow_case(kCount, 0.0);
  zero.run();
  const std::vector<double> zeros(kCount, 0.0);
  EXPECT_EQ(zero.values(4), zeros);
  EXPECT_EQ(zero.values(5), zeros);
  KernelCase bad = slow_case(kCount, std::numeric_limits<double>::quiet_NaN());
  bad.run();
  KernelCase infinite = slow_case(kCount, -kInfinity);
  infinite.run();
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_TRUE(std::isnan(bad.values(4)[i]) && std::isnan(bad.values(5)[i])) << i;
  }
  EXPECT_EQ(infinite.values(4), std::vector<double>(kCount, -kInfinity));
  EXPECT_EQ(infinite.values(5), std::vector<double>(kCount, kInfinity));
}

KernelCase balance_case(double scale) {
  KernelCase kernel({"balance_update",
                     to_attributes(BalanceUpdateAttributes{.rate = 0.125, .has_param = true}),
                     {read(DType::kF32, {4}), read(DType::kF32, {1}), read_write(DType::kF32, {4}),
                      write(DType::kBF16, {4})}});
  kernel.set(0, {0, -4, 1e-30, -1e30});
  kernel.set(1, {scale});
  kernel.set(2, {0.5, 0.5, 0.5, 1 + 0x1p-10});
  kernel.run();
  return kernel;
}

TEST(BalanceUpdate, MovesAgainstTheSignByTheRate) {
  const KernelCase kernel = balance_case(0.25);
  EXPECT_EQ(kernel.values(2), (std::vector<double>{0.5, 0.625, 0.375, 1.125 + 0x1p-10}));
  EXPECT_EQ(kernel.values(3), (std::vector<double>{0.5, 0.625, 0.375, 1.125}));
}

// A difference, a product and a sum, each rounded once; 1 - decay is rounded to fp32.
TEST(AverageWeights, MovesTowardsTheWeights) {
  for (const int64_t n : kSizes) {
    for (const double decay : {0.0, 0.5, 0.999}) {
      KernelCase kernel = average_case(n, decay, 0.25);
      const std::vector<double> weight = kernel.values(0);
      std::vector<double> expected = kernel.values(2);
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] = decay * expected[i] + (1 - decay) * weight[i];
      }
      kernel.run(2);
      EXPECT_EQ(kernel.values(0), weight);
      expect_close(kernel.values(2), expected, {.absolute = 4 * 0x1p-24, .relative = 2 * 0x1p-24},
                   fmt::format("{} elements, decay {}", n, decay));
    }
  }
}

TEST(AverageWeights, StaysWhereTheWeightsAreAndInASkippedStep) {
  KernelCase equal = average_case(1009, 0.999, 1.0);
  equal.set(2, equal.values(0));
  equal.run();
  EXPECT_EQ(equal.values(2), equal.values(0));
  KernelCase skipped = average_case(1009, 0.5, 0.0);
  const std::vector<double> before = skipped.values(2);
  skipped.set_all(0, std::numeric_limits<double>::quiet_NaN());
  skipped.run();
  EXPECT_EQ(skipped.values(2), before);
}

TEST(BalanceUpdate, KeepsBiasesInASkippedStep) {
  const KernelCase kernel = balance_case(0.0);
  EXPECT_EQ(kernel.values(2), (std::vector<double>{0.5, 0.5, 0.5, 1 + 0x1p-10}));
  EXPECT_EQ(kernel.values(3), (std::vector<double>{0.5, 0.5, 0.5, 1.0}));
}

}  // namespace
}  // namespace braid
