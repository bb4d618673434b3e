#include "ops/cross_entropy.h"

#include <gmock/gmock.h>

#include "base/errors.h"
#include "support/kernel_harness.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t vocabulary = 0;
};

const Sizes kAwkwardSizes[] = {{1, 1, 1},     {1, 7, 1},        {3, 5, 5},      {7, 33, 31},
                               {13, 101, 97}, {67, 1024, 1009}, {2, 4201, 4201}};

std::string name_of(const Sizes& s) {
  return fmt::format("rows {} columns {} vocabulary {}", s.rows, s.columns, s.vocabulary);
}

constexpr size_t kLogits = 0, kLabels = 1, kScale = 2, kLoss = 3, kLse = 4, kZ = 5;  // forward
constexpr size_t kLseIn = 3, kDLogits = 4;  // of the backward

OpSpec forward_spec(const Sizes& s, DType dtype, double z_loss = 0) {
  OpSpec spec{
      .op = "cross_entropy",
      .attributes =
          to_attributes(CrossEntropyAttributes{.vocabulary = s.vocabulary, .z = {z_loss}}),
      .operands = {read(dtype, {s.rows, s.columns}), read(DType::kI32, {s.rows}),
                   read(wide(dtype), {1}), write(wide(dtype), {1}), write(wide(dtype), {s.rows})}};
  if (z_loss > 0) {
    spec.operands.push_back(write(wide(dtype), {1}));
  }
  return spec;
}

OpSpec backward_spec(const Sizes& s, DType dtype, double z_loss = 0) {
  return {.op = "cross_entropy_backward",
          .attributes = to_attributes(
              CrossEntropyBackwardAttributes{.shard = {.vocabulary = s.vocabulary}, .z = {z_loss}}),
          .operands = {read(dtype, {s.rows, s.columns}), read(DType::kI32, {s.rows}),
                       read(wide(dtype), {1}), read(wide(dtype), {s.rows}),
                       write(dtype, {s.rows, s.columns})}};
}

/// Every fifth label is to be ignored.
std::vector<double> some_labels(const Sizes& s) {
  TestRandom random(7);
  std::vector<double> labels;
  for (int64_t row = 0; row < s.rows; ++row) {
    labels.push_back(row % 5 == 3 ? -1.0 - static_cast<double>(row)
                                  : static_cast<double>(random.below(s.vocabulary)));
  }
  return labels;
}

/// Padding columns hold what a kernel must not look at.
std::vector<double> some_logits(const Sizes& s, double size) {
  std::vector<double> logits = TestRandom(3).uniforms(s.rows * s.columns, -size, size);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (static_cast<int64_t>(i) % s.columns >= s.vocabulary) {
      logits[i] = i % 2 == 0 ? std::numeric_limits<double>::quiet_NaN() : 1e30;
    }
  }
  return logits;
}

/// Softmax and log-sum-exp of each row, the textbook way; padding gets probability 0.
struct NaiveSoftmax {
  std::vector<double> probabilities;
  std::vector<double> lse;

  NaiveSoftmax(const Sizes& s, const std::vector<double>& logits)
      : probabilities(logits.size()), lse(static_cast<size_t>(s.rows)) {
    for (int64_t row = 0; row < s.rows; ++row) {
      const auto begin = logits.begin() + row * s.columns;
      const double max = *std::max_element(begin, begin + s.vocabulary);
      double sum = 0;
      for (int64_t i = 0; i < s.vocabulary; ++i) {
        sum += std::exp(begin[i] - max);
      }
      lse[static_cast<size_t>(row)] = max + std::log(sum);
      for (int64_t i = 0; i < s.vocabulary; ++i) {
        probabilities[static_cast<size_t>(row * s.columns + i)] = std::exp(begin[i] - max) / sum;
      }
    }
  }
};

double naive_loss(const Sizes& s, const std::vector<double>& logits,
                  const std::vector<double>& labels, double scale) {
  const NaiveSoftmax softmax(s, logits);
  double loss = 0;
  for (int64_t row = 0; row < s.rows; ++row) {
    const auto label = static_cast<int64_t>(labels[static_cast<size_t>(row)]);
    if (label >= 0) {
      loss += softmax.lse[static_cast<size_t>(row)] -
              logits[static_cast<size_t>(row * s.columns + label)];
    }
  }
  return scale * loss;
}

std::vector<double> naive_gradient(const Sizes& s, const std::vector<double>& logits,
                                   const std::vector<double>& labels, double scale) {
  std::vector<double> gradient = NaiveSoftmax(s, logits).probabilities;
  for (int64_t row = 0; row < s.rows; ++row) {
    const auto label = static_cast<int64_t>(labels[static_cast<size_t>(row)]);
    for (int64_t i = 0; i < s.columns; ++i) {
      double& d = gradient[static_cast<size_t>(row * s.columns + i)];
      d = label < 0 ? 0.0 : scale * (d - (i == label ? 1.0 : 0.0));
    }
  }
  return gradient;
}

struct Inputs {
  double size = 5.0;  // of logits
  double scale = 0.25;
  double z_loss = 0.0;
};

KernelCase forward_case(const Sizes& s, DType dtype, const Inputs& inputs = {}) {
  KernelCase kernel(forward_spec(s, dtype, inputs.z_loss));
  kernel.set(kLogits, some_logits(s, inputs.size));
  kernel.set(kLabels, some_labels(s));
  kernel.set_all(kScale, inputs.scale);
  return kernel;
}

KernelCase backward_case(const KernelCase& forward, const Sizes& s, DType dtype,
                         double z_loss = 0) {
  KernelCase kernel(backward_spec(s, dtype, z_loss));
  kernel.set(kLogits, forward.values(kLogits));
  kernel.set(kLabels, forward.values(kLabels));
  kernel.set(kScale, forward.values(kScale));
  kernel.set(kLseIn, forward.values(kLse));
  return kernel;
}

TEST(CrossEntropy, MatchesTextbookOnAwkwardSizes) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const Sizes& s : kAwkwardSizes) {
      KernelCase kernel = forward_case(s, dtype);
      kernel.run(2);
      const std::vector<double> logits = kernel.values(kLogits);
      // Sums of up to 2048 positive terms, perhaps in one lane at random roundings (45 units), exp
      // to 2 units, then a log; lse is about 10.
      const double epsilon = rounding_error(wide(dtype));
      expect_close(kernel.values(kLse), NaiveSoftmax(s, logits).lse,
                   {.absolute = 50 * epsilon, .relative = 4 * epsilon}, "lse " + name_of(s));
      expect_close(
          kernel.values(kLoss), {naive_loss(s, logits, kernel.values(kLabels), 0.25)},
          {.absolute = 50 * epsilon * static_cast<double>(s.rows), .relative = 4 * epsilon},
          "loss " + name_of(s));
    }
  }
}

TEST(CrossEntropyBackward, MatchesTextbookOnAwkwardSizes) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const Sizes& s : kAwkwardSizes) {
      KernelCase forward = forward_case(s, dtype);
      forward.run();
      KernelCase backward = backward_case(forward, s, dtype);
      backward.run(2);
      const double epsilon = rounding_error(wide(dtype));
      expect_close(backward.values(kDLogits),
                   naive_gradient(s, forward.values(kLogits), forward.values(kLabels), 0.25),
                   {.absolute = 10 * epsilon, .relative = 60 * epsilon + rounding_error(dtype)},
                   name_of(s));
    }
  }
}

double naive_z(const Sizes& s, const KernelCase& forward, const Inputs& inputs) {
  const NaiveSoftmax softmax(s, forward.values(kLogits));
  const std::vector<double> labels = forward.values(kLabels);
  double sum = 0;
  for (size_t row = 0; row < labels.size(); ++row) {
    sum += labels[row] < 0 ? 0.0 : softmax.lse[row] * softmax.lse[row];
  }
  return inputs.scale * inputs.z_loss * sum;
}

/// The gradient of the loss and of z.
std::vector<double> naive_gradient_with_z(const Sizes& s, const KernelCase& forward,
                                          const Inputs& inputs) {
  const NaiveSoftmax softmax(s, forward.values(kLogits));
  std::vector<double> gradient =
      naive_gradient(s, forward.values(kLogits), forward.values(kLabels), inputs.scale);
  for (size_t i = 0; i < gradient.size(); ++i) {
    const size_t row = i / static_cast<size_t>(s.columns);
    const double slope = inputs.scale * inputs.z_loss * 2 * softmax.lse[row];
    gradient[i] += forward.values(kLabels)[row] < 0 ? 0.0 : slope * softmax.probabilities[i];
  }
  return gradient;
}

TEST(CrossEntropy, HasALossOfTheLogSumExp) {
  const Inputs inputs{.z_loss = 0.02};
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const Sizes& s : kAwkwardSizes) {
      KernelCase forward = forward_case(s, dtype, inputs);
      forward.run(2);
      KernelCase plain = forward_case(s, dtype);
      plain.run(2);
      EXPECT_TRUE(forward.bytes(kLoss) == plain.bytes(kLoss)) << name_of(s);
      EXPECT_TRUE(forward.bytes(kLse) == plain.bytes(kLse)) << name_of(s);
      // As lse, twice: it is a square.
      const double epsilon = rounding_error(wide(dtype));
      expect_close(forward.values(kZ), {naive_z(s, forward, inputs)},
                   {.absolute = 50 * epsilon, .relative = 50 * epsilon}, "z " + name_of(s));
      KernelCase backward = backward_case(forward, s, dtype, inputs.z_loss);
      backward.run(2);
      expect_close(backward.values(kDLogits), naive_gradient_with_z(s, forward, inputs),
                   {.absolute = 20 * epsilon, .relative = 60 * epsilon + rounding_error(dtype)},
                   "gradient " + name_of(s));
    }
  }
}

TEST(CrossEntropyBackward, MatchesCentralDifferences) {
  for (const double z_loss : {0.0, 0.3}) {
    const Sizes s{4, 7, 5};
    KernelCase forward = forward_case(s, DType::kF64, {.size = 2.0, .z_loss = z_loss});
    std::vector<double> logits = forward.values(kLogits);
    std::replace_if(
        logits.begin(), logits.end(), [](double x) { return !(x < 1e29); }, 0.5);
    forward.set(kLogits, logits);
    forward.run();
    KernelCase backward = backward_case(forward, s, DType::kF64, z_loss);
    backward.run();
    const auto loss = [&](const std::vector<double>& x) {
      forward.set(kLogits, x);
      forward.run();
      return forward.values(kLoss)[0] + (z_loss > 0 ? forward.values(kZ)[0] : 0.0);
    };
    expect_gradient(loss, logits, backward.values(kDLogits), "d_logits");
  }
}

TEST(CrossEntropy, SurvivesHugeLogits) {
  const Sizes s{4, 3, 3};
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    KernelCase forward(forward_spec(s, dtype));
    forward.set(kLogits, {1e4, -1e4, 0, -1e4, -1e4, -1e4, 1e4, 1e4, 1e4, 1e4, -1e4, -1e4});
    forward.set(kLabels, {0, 1, 2, 1});
    forward.set_all(kScale, 1.0);
    forward.run();
    expect_close(forward.values(kLse), {1e4, -1e4 + std::log(3.0), 1e4 + std::log(3.0), 1e4},
                 {.relative = 2 * rounding_error(dtype)}, "lse");
    // lse near 1e4 is rounded to 1e4 * epsilon.
    expect_close(forward.values(kLoss), {2 * std::log(3.0) + 2e4},
                 {.absolute = 4e4 * rounding_error(dtype)}, "loss");
    KernelCase backward = backward_case(forward, s, dtype);
    backward.run();
    const double third = 1.0 / 3.0;
    expect_close(backward.values(kDLogits),
                 {0, 0, 0, third, third - 1, third, third, third, third - 1, 1, -1, 0},
                 {.absolute = 2e4 * rounding_error(dtype)}, "d_logits");
  }
}

TEST(CrossEntropy, OneValidColumnIsCertain) {
  const Sizes s{3, 4, 1};
  KernelCase forward = forward_case(s, DType::kF32);
  forward.set(kLabels, {0, 0, -7});
  forward.run();
  EXPECT_EQ(forward.values(kLoss)[0], 0.0);
  KernelCase backward = backward_case(forward, s, DType::kF32);
  backward.run();
  EXPECT_EQ(backward.values(kDLogits), std::vector<double>(12, 0.0));
}

TEST(CrossEntropy, AllLabelsIgnoredIsNoLossAndNoGradient) {
  const Sizes s{5, 37, 31};
  KernelCase forward = forward_case(s, DType::kF32);
  forward.set_all(kLabels, -100.0);
  forward.run();
  EXPECT_EQ(forward.values(kLoss)[0], 0.0);
  KernelCase backward = backward_case(forward, s, DType::kF32);
  backward.run();
  EXPECT_EQ(backward.values(kDLogits), std::vector<double>(5 * 37, 0.0));
}

TEST(CrossEntropy, NanAndInfinityReachTheLoss) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const int64_t at : {0, 17, 36}) {
      const Sizes s{1, 37, 37};
      KernelCase forward = forward_case(s, DType::kF32);
      std::vector<double> logits = forward.values(kLogits);
      logits[static_cast<size_t>(at)] = bad;
      forward.set(kLogits, logits);
      forward.set(kLabels, {5});
      forward.run();
      EXPECT_TRUE(std::isnan(forward.values(kLoss)[0])) << bad << " in column " << at;
    }
  }
}

TEST(CrossEntropy, MinusInfinityIsImpossible) {
  KernelCase forward(forward_spec({1, 3, 3}, DType::kF32));
  forward.set(kLogits, {-std::numeric_limits<double>::infinity(), 1.0, 1.0});
  forward.set(kLabels, {2});
  forward.set_all(kScale, 1.0);
  forward.run();
  expect_close(forward.values(kLoss), {std::log(2.0)}, {.relative = 1e-6});
}

TEST(CrossEntropy, LabelPastTheVocabularyIsAnErrorNamingIt) {
  const Sizes s{200, 40, 37};
  for (const bool is_backward : {false, true}) {
    KernelCase kernel(is_backward ? backward_spec(s, DType::kF32) : forward_spec(s, DType::kF32));
    std::vector<double> labels(200, 3.0);
    labels[11] = 37;
    labels[150] = 1000;
    kernel.set(kLabels, labels);
    try {
      kernel.run(3);
      ADD_FAILURE() << "no error";
    } catch (const DeviceError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("label 37 in row 11"));
      EXPECT_THAT(error.what(), testing::HasSubstr("vocabulary of 37"));
    }
  }
}

TEST(CrossEntropy, WorkersDoNotChangeResults) {
  const Sizes s{211, 512, 503};
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    KernelCase forward = forward_case(s, dtype);
    forward.run(1);
    const std::vector<std::byte> loss = forward.bytes(kLoss);
    const std::vector<std::byte> lse = forward.bytes(kLse);
    KernelCase backward = backward_case(forward, s, dtype);
    backward.run(1);
    const std::vector<std::byte> d_logits = backward.bytes(kDLogits);
    for (const int workers : {2, 3}) {
      forward.run(workers);
      EXPECT_TRUE(forward.bytes(kLoss) == loss) << workers << " workers";
      EXPECT_TRUE(forward.bytes(kLse) == lse) << workers << " workers";
      backward.run(workers);
      EXPECT_TRUE(backward.bytes(kDLogits) == d_logits) << workers << " workers";
    }
  }
}

}  // namespace
}  // namespace braid
