#include "ops/router.h"

#include <limits>
#include <numeric>

#include "support/kernel_harness.h"
#include "support/router_scores.h"

namespace braid {
namespace {

/// With sequences, one more than the rows are of.
Shape counts_shape(const RouterLossAttributes& attributes, int64_t tokens, int64_t experts) {
  return attributes.rows == SequenceRows() ? Shape{experts}
                                           : Shape{attributes.rows.of(tokens - 1) + 2, experts};
}

KernelCase losses_case(DType dtype, const RouterLossAttributes& attributes, int64_t tokens,
                       int64_t experts, bool backward) {
  return KernelCase(
      {backward ? "router_losses_backward" : "router_losses",
       to_attributes(attributes),
       {read(dtype, {tokens, experts}),
        read(DType::kF32, counts_shape(attributes, tokens, experts)), read(dtype, {1}),
        write(dtype, backward ? Shape{tokens, experts} : Shape{2})}});
}

std::vector<double> naive_losses(const RouterLossAttributes& a, const KernelCase& kernel,
                                 int64_t tokens, int64_t experts) {
  const auto logits = kernel.values(0);
  const auto counts = kernel.values(1);
  const double scale = kernel.values(2)[0];
  double balance = 0;
  double z = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto begin = logits.begin() + t * experts;
    const std::vector<double> row(begin, begin + experts);
    const int64_t sequence = a.rows.sequence == 0 ? 0 : (a.rows.first + t) / a.rows.sequence;
    const auto own = counts.begin() + sequence * experts;
    const double rows = std::accumulate(own, own + experts, 0.0);
    auto scores = scores_of(row, a.sigmoid);
    const double sum = a.sigmoid ? std::accumulate(scores.begin(), scores.end(), 1e-20) : 1.0;
    double total = 0;
    for (size_t e = 0; e < row.size(); ++e) {
      balance += own[static_cast<std::ptrdiff_t>(e)] / rows * scores[e] / sum;
      total += std::exp(row[e]);
    }
    z += std::log(total) * std::log(total);
  }
  return {scale * a.balance * static_cast<double>(experts) * balance, scale * a.z * z};
}

std::vector<double> some_counts(const Shape& shape) {
  const int64_t experts = shape[shape.rank() - 1];
  std::vector<double> counts;
  for (int64_t i = 0; i < shape.num_elems(); ++i) {
    counts.push_back(static_cast<double>((i * 7) % 5));  // also 0
    counts.back() += i % experts == experts - 1 ? 1 : 0;
  }
  return counts;
}

constexpr RouterLossAttributes kLosses[] = {
    {.balance = 0.5},
    {.z = 0.25},
    {.balance = 0.5, .z = 0.25},
    {.balance = 0.5, .z = 0.25, .sigmoid = true},
    {.balance = 0.5, .rows = {.sequence = 3}},
    {.balance = 0.5, .z = 0.25, .sigmoid = true, .rows = {.sequence = 5, .first = 3}}};

struct LossSizes {
  int64_t tokens;
  int64_t experts;
};
constexpr LossSizes kLossSizes[] = {{1, 1}, {1, 6}, {7, 5}, {40, 64}};

TEST(RouterLosses, EqualTheirFormulas) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const RouterLossAttributes& attributes : kLosses) {
      for (const LossSizes s : kLossSizes) {
        KernelCase kernel = losses_case(dtype, attributes, s.tokens, s.experts, false);
        kernel.set(1, some_counts(counts_shape(attributes, s.tokens, s.experts)));
        const auto expected = naive_losses(attributes, kernel, s.tokens, s.experts);
        kernel.run(2);
        expect_close(kernel.values(3), expected,
                     {.absolute = 1e-12, .relative = 32 * rounding_error(dtype)});
      }
    }
  }
}

TEST(RouterLossesBackward, AgreesWithDifferences) {
  for (const RouterLossAttributes& attributes : kLosses) {
    for (const LossSizes s : {LossSizes{1, 6}, LossSizes{4, 5}}) {
      KernelCase backward = losses_case(DType::kF64, attributes, s.tokens, s.experts, true);
      backward.set(1, some_counts(counts_shape(attributes, s.tokens, s.experts)));
      backward.run();
      const auto loss = [&](const std::vector<double>& logits) {
        KernelCase forward = losses_case(DType::kF64, attributes, s.tokens, s.experts, false);
        forward.set(0, logits);
        forward.set(1, backward.values(1));
        forward.set(2, backward.values(2));
        forward.run();
        return forward.values(3)[0] + forward.values(3)[1];
      };
      expect_gradient(loss, backward.values(0), backward.values(3), "d_logits");
    }
  }
}

TEST(RouterLosses, AreThoseOfOneRankOfAGroup) {
  for (const bool backward : {false, true}) {
    KernelCase kernel =
        losses_case(DType::kF32, {.balance = 1, .z = 1, .adds = false}, 3, 4, backward);
    kernel.set_all(0, std::numeric_limits<double>::quiet_NaN());  // which must not show
    kernel.run();
    const auto result = kernel.values(3);
    EXPECT_EQ(result, std::vector<double>(result.size(), 0.0));
  }
}

TEST(RouterLosses, WithoutRowsAreNotNan) {
  KernelCase kernel = losses_case(DType::kF32, {.balance = 1}, 3, 4, false);
  kernel.set_all(1, 0.0);
  kernel.run();
  EXPECT_EQ(kernel.values(3), (std::vector<double>{0, 0}));
}

// Golden values, from PyTorch and by hand.
TEST(RouterLosses, AreThoseOfMegatron) {
  constexpr Tolerance kSevenDigits{.absolute = 6e-8};
  const auto run = [](const RouterLossAttributes& attributes, bool backward) {
    KernelCase kernel = losses_case(DType::kF64, attributes, 3, 4, backward);
    kernel.set(0, {1, 2, .5, -1, 0, -.5, 1.5, 1, 2, 1, 0, 3});
    kernel.set(1, {2, 1, 1, 2});
    kernel.set(2, {1.0 / 3});
    kernel.run();
    return kernel.values(3);
  };
  expect_close(run({.balance = 1, .z = 1}, false), {1.0127929, 7.5978652}, kSevenDigits);
  expect_close(run({.balance = 1}, true),
               {.0371412, -.0344753, -.0076925, .0050265, .0145796, -.0064621, -.047749, .0396315,
                .0062749, -.017057, -.0062749, .017057},
               kSevenDigits, "balance");
  expect_close(run({.z = 1}, true),
               {.3729595, 1.0138091, .2262114, .0504746, .1646882, .0998884, .7380813, .4476689,
                .5432812, .199862, .0735251, 1.4767915},
               kSevenDigits, "z");
}

// Two sequences of two tokens, two experts per token. From PyTorch in f64: equations 17 to 20 of
// DeepSeek-V3's report, and with a softmax also MoEGate of DeepSeek-V2's published code (seq_aux).
TEST(RouterLosses, InsideSequencesAreThoseOfDeepseek) {
  const auto run = [](bool sigmoid, bool backward) {
    KernelCase kernel = losses_case(
        DType::kF64, {.balance = 1, .sigmoid = sigmoid, .rows = {.sequence = 2}}, 4, 4, backward);
    kernel.set(0, {1, 2, .5, -1, 0, 1.5, -.5, 1, 2, 1, 0, 3, -1, .5, 2, 1.5});
    kernel.set(1, {1, 2, 0, 1, 1, 0, 1, 2, 0, 0, 0, 0});
    kernel.set(2, {1.0 / 4});
    kernel.run();
    return kernel.values(3);
  };
  constexpr Tolerance kEightDigits{.absolute = 6e-9};
  constexpr Tolerance kSevenDigits{.absolute = 6e-8};
  expect_close(run(true, false), {1.10804921, 0}, kEightDigits, "sigmoid");
  expect_close(run(false, false), {1.41856780, 0}, kEightDigits, "softmax");
  expect_close(
      run(true, true),
      {-.0020264, .0094036, -.0258919, -.0020264, -.0046722, .0125811, -.0286074, -.0036744,
       -.0006192, -.0171993, -.0014743, .0034192, -.0014299, -.0243949, -.0007636, .0133129},
      kSevenDigits, "gradient with sigmoids");
  expect_close(
      run(false, true),
      {-.026539, .0802246, -.0500939, -.0035917, -.0124917, .0712427, -.0247949, -.033956,
       -.0329723, -.0339159, -.0044623, .0713505, -.001351, -.0357349, -.0271351, .0642211},
      kSevenDigits, "gradient with a softmax");
}

TEST(RouterLosses, WorkersDoNotChangeResults) {
  for (const bool backward : {false, true}) {
    expect_same_for_any_workers(
        [&] { return losses_case(DType::kF32, kLosses[2], 2000, 64, backward); });
    expect_same_for_any_workers([&] {
      return losses_case(DType::kF32, {.balance = 1, .rows = {.sequence = 300, .first = 100}}, 2000,
                         64, backward);
    });
  }
}

}  // namespace
}  // namespace braid
