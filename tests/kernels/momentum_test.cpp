#include "ops/momentum.h"

#include "ops/optimizer.h"
#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRate = 1e-2;
constexpr int64_t kSplitSize = 3 * 32768 + 11;
constexpr LionAttributes kLion{.beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1, .has_param = true};
// Some ten roundings each of values up to 1.
constexpr Tolerance kRoundings{.absolute = 4 * 0x1p-24, .relative = 8 * 0x1p-24};

struct UpdateForm {
  bool has_moment = true;
  bool has_param = true;
  DType moments = DType::kF32;
};

KernelCase update_case(std::string op, std::vector<Attribute> attributes, int64_t n,
                       const UpdateForm& form) {
  const bool narrow = form.moments == DType::kBF16;
  std::vector<OperandSpec> operands = {read(DType::kF32, {n}), read(DType::kF32, {1}),
                                       read(DType::kF32, {narrow ? 4 : 3}),
                                       read_write(DType::kF32, {n})};
  if (form.has_moment) {
    operands.push_back(read_write(form.moments, {n}));
  }
  if (form.has_param) {
    operands.push_back(write(DType::kBF16, {n}));
  }
  KernelCase kernel({std::move(op), std::move(attributes), operands});
  kernel.set(1, {0.5});
  const auto scalars = adamw_scalars(kRate, 0.9, 0.95, 3);
  kernel.set(2, {scalars.begin(), scalars.begin() + (narrow ? 4 : 3)});
  return kernel;
}

KernelCase lion_case(int64_t n, DType moments = DType::kF32) {
  return update_case("lion", to_attributes(kLion), n, {.moments = moments});
}

struct UpdateState {
  std::vector<double> weight;
  std::vector<double> exp_avg;
};

/// Algorithm 2 of Lion's paper in double.
UpdateState naive_lion(const KernelCase& kernel) {
  const auto grad = kernel.values(0);
  UpdateState s{kernel.values(3), kernel.values(4)};
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * kernel.values(1)[0];
    const double mean = kLion.beta1 * s.exp_avg[i] + (1 - kLion.beta1) * g;
    s.weight[i] -= kRate * kLion.weight_decay * s.weight[i];
    s.weight[i] -= mean == 0 ? 0.0 : std::copysign(kRate, mean);
    s.exp_avg[i] = kLion.beta2 * s.exp_avg[i] + (1 - kLion.beta2) * g;
  }
  return s;
}

void expect_rounded(const KernelCase& kernel, size_t param) {
  std::vector<double> expected = kernel.values(3);
  for (double& value : expected) {
    value = rounded_to(DType::kBF16, value);
  }
  EXPECT_EQ(kernel.values(param), expected);
}

TEST(Lion, FollowsThePaper) {
  for (const int64_t n : {1, 7, 1009, 70001}) {
    KernelCase kernel = lion_case(n);
    const UpdateState expected = naive_lion(kernel);
    kernel.run(2);
    expect_close(kernel.values(3), expected.weight, kRoundings, "weight");
    expect_close(kernel.values(4), expected.exp_avg, kRoundings, "exp_avg");
    expect_rounded(kernel, 5);
  }
}

TEST(Lion, AMeanOfZeroMovesNothing) {
  KernelCase kernel = lion_case(3);
  kernel.set(0, {0, 1, -2});
  kernel.set(3, {0, 0, 0});
  kernel.set(4, {0, 0, 0});
  kernel.run();
  expect_close(kernel.values(3), {0, -kRate, kRate}, kRoundings);
}

/// torch.optim.SGD's formula with decoupled decay, in double.
UpdateState naive_sgd(const KernelCase& kernel, const SgdAttributes& a) {
  const auto grad = kernel.values(0);
  UpdateState s{kernel.values(3), {}};
  s.exp_avg = a.momentum > 0 ? kernel.values(4) : std::vector<double>(grad.size());
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * kernel.values(1)[0];
    s.exp_avg[i] = a.momentum * s.exp_avg[i] + g;
    const double direction = a.nesterov ? g + a.momentum * s.exp_avg[i] : s.exp_avg[i];
    s.weight[i] -= kRate * a.weight_decay * s.weight[i];
    s.weight[i] -= kRate * direction;
  }
  return s;
}

TEST(Sgd, FollowsItsFormula) {
  for (const SgdAttributes& attributes :
       {SgdAttributes{.weight_decay = 0.1}, SgdAttributes{.momentum = 0.9, .has_param = true},
        SgdAttributes{.momentum = 0.9, .nesterov = true, .weight_decay = 0.1},
        SgdAttributes{.has_param = true}}) {
    KernelCase kernel =
        update_case("sgd", to_attributes(attributes), 5003,
                    {.has_moment = attributes.momentum > 0, .has_param = attributes.has_param});
    const UpdateState expected = naive_sgd(kernel, attributes);
    kernel.run(2);
    expect_close(kernel.values(3), expected.weight, kRoundings, "weight");
    if (attributes.momentum > 0) {
      expect_close(kernel.values(4), expected.exp_avg, kRoundings, "exp_avg");
    }
    if (attributes.has_param) {
      expect_rounded(kernel, attributes.momentum > 0 ? 5 : 4);
    }
  }
}

void expect_unchanged(KernelCase kernel) {
  kernel.set_all(0, kInfinity);
  kernel.set(1, {0.0});
  const UpdateState before{kernel.values(3), kernel.values(4)};
  kernel.run();
  EXPECT_EQ(kernel.values(3), before.weight);
  EXPECT_EQ(kernel.values(4), before.exp_avg);
  expect_rounded(kernel, 5);
}

// Gradients may be infinite or NaN in a step that clip_scale has given the scale 0.
TEST(Momentum, ChangesNothingIfTheScaleIsZero) {
  const SgdAttributes sgd{.momentum = 0.9, .has_param = true};
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    expect_unchanged(lion_case(1009, moments));
    expect_unchanged(update_case("sgd", to_attributes(sgd), 1009, {.moments = moments}));
  }
}

// A bf16 moment is one of the two numbers around the fp32 result, at most 2^-7 of it apart.
TEST(Momentum, OfBf16FollowsThePaperUpToOneRounding) {
  KernelCase kernel = lion_case(5003, DType::kBF16);
  const UpdateState expected = naive_lion(kernel);
  kernel.run(2);
  expect_close(kernel.values(3), expected.weight, kRoundings, "weight");
  expect_close(kernel.values(4), expected.exp_avg,
               {.absolute = kRoundings.absolute, .relative = 0x1p-7 + kRoundings.relative},
               "exp_avg");
}

TEST(Momentum, DoesNotDependOnTheNumberOfWorkers) {
  expect_same_for_any_workers([] { return lion_case(kSplitSize); });
  expect_same_for_any_workers([] { return lion_case(kSplitSize, DType::kBF16); });
  expect_same_for_any_workers([] {
    return update_case("sgd", to_attributes(SgdAttributes{}), kSplitSize,
                       {.has_moment = false, .has_param = false});
  });
}

}  // namespace
}  // namespace braid
