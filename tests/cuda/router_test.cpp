#include "ops/router.h"

#include <limits>

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using RouterCudaTest = CudaKernelTest;

struct Choice {
  int64_t tokens;
  int64_t experts;
  RouterRule rule;
  bool has_bias = false;
  ForcedChoice forced = {};
  bool given = false;

  RouteAttributes attributes() const {
    return {.rule = rule, .has_bias = has_bias, .choice = forced, .source = {.given = given}};
  }
  Shape chosen() const { return {tokens, rule.per_token}; }
  size_t weights() const { return attributes().weights_operand(); }
  std::string name() const {
    return fmt::format(
        "T {} E {} K {} sigmoid {} normalize {} groups {} of {} bias {} forced {} given {}", tokens,
        experts, rule.per_token, rule.sigmoid, rule.normalize, rule.kept_groups, rule.groups,
        has_bias, forced.forced, given);
  }
};

/// One token and expert, all experts, every number of logits per lane, groups of one expert.
std::vector<Choice> choices() {
  std::vector<Choice> list;
  for (const bool of_sigmoid : {false, true}) {
    for (const bool normalize : {false, true}) {
      for (const bool has_bias : {false, true}) {
        const auto add = [&](int64_t tokens, int64_t experts, int64_t per_token, int64_t groups,
                             int64_t kept_groups) {
          list.push_back({tokens,
                          experts,
                          {.per_token = per_token,
                           .sigmoid = of_sigmoid,
                           .normalize = normalize,
                           .scale = 2.5,
                           .groups = groups,
                           .kept_groups = kept_groups},
                          has_bias,
                          {.forced = !has_bias && tokens % 4 == 1, .first = 3}});
        };
        add(1, 1, 1, 1, 1);
        add(3, 5, 5, 1, 1);
        add(9, 8, 2, 8, 3);
        add(21, 64, 8, 1, 1);
        add(13, 96, 6, 12, 3);
        add(7, 256, 8, 8, 4);
        add(5, 512, 32, 1, 1);
        list.push_back({.tokens = 21,
                        .experts = 64,
                        .rule = {.per_token = 8, .sigmoid = of_sigmoid, .normalize = normalize},
                        .has_bias = has_bias,
                        .given = true});
      }
    }
  }
  return list;
}

/// Numbers between -1 and 1, at equal distances, in a random order for each row.
std::vector<double> spread(int64_t rows, int64_t count, uint64_t seed) {
  TestRandom random(seed);
  std::vector<double> values;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> list;
    for (int64_t i = 0; i < count; ++i) {
      list.insert(list.begin() + random.below(i + 1),
                  2.0 * static_cast<double>(i) / static_cast<double>(count) - 1);
    }
    values.insert(values.end(), list.begin(), list.end());
  }
  return values;
}

KernelCase route_case(const Choice& c) {
  std::vector<OperandSpec> operands = {read(DType::kF32, {c.tokens, c.experts})};
  if (c.has_bias) {
    operands.push_back(read(DType::kF32, {c.experts}));
  }
  if (c.given) {
    operands.push_back(read(DType::kI32, c.chosen()));
  }
  operands.push_back(write(DType::kF32, c.chosen()));
  operands.push_back(write(DType::kI32, c.chosen()));
  KernelCase kernel({"route", to_attributes(c.attributes()), operands});
  kernel.set(0, spread(c.tokens, c.experts, 1));
  if (c.has_bias) {
    kernel.set(1, spread(1, c.experts, 2));
  }
  if (c.given) {
    std::vector<double> given;
    for (int64_t pair = 0; pair < c.chosen().num_elems(); ++pair) {
      given.push_back(static_cast<double>(pair * 5 % c.experts));
    }
    kernel.set(c.weights() - 1, given);
  }
  return kernel;
}

// Weights are of an exponential function and a division; experts are equal.
Tolerance tolerance(DType dtype) {
  return dtype == DType::kI32 ? Tolerance{} : Tolerance{.relative = 1e-5};
}

TEST_F(RouterCudaTest, ChoosesWhatTheCpuDoes) {
  for (const Choice& c : choices()) {
    expect_equals_cpu(route_case(c), context(), tolerance, c.name());
  }
}

TEST_F(RouterCudaTest, OfEqualLogitsChoosesTheLowerNumbers) {
  for (const int64_t groups : {1, 8}) {
    const Choice c{3, 64, {.per_token = 6, .groups = groups, .kept_groups = (groups + 1) / 2}};
    const auto make = [&] {
      KernelCase kernel = route_case(c);
      std::vector<double> logits;
      for (int64_t i = 0; i < c.tokens * c.experts; ++i) {
        logits.push_back(i < c.experts ? (i % 2 == 0 ? 0.0 : -0.0) : static_cast<double>(i % 3));
      }
      kernel.set(0, logits);
      return kernel;
    };
    KernelCase expected = make();
    expected.run();
    KernelCase actual = make();
    run_on_cuda(actual, context());
    EXPECT_EQ(actual.values(2), expected.values(2)) << groups;
  }
}

TEST_F(RouterCudaTest, OfNumbersThatAreNoneChoosesWhatTheCpuDoes) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const bool of_sigmoid : {false, true}) {
    for (const int64_t groups : {1, 4}) {
      const Choice c{
          4, 8, {.per_token = 2, .sigmoid = of_sigmoid, .groups = groups, .kept_groups = 1}};
      KernelCase actual = route_case(c);
      auto logits = actual.values(0);
      logits[3] = kNan;
      logits[12] = kInfinity;
      logits[17] = -kInfinity;
      std::fill(logits.begin() + 24, logits.end(), kNan);
      actual.set(0, logits);
      KernelCase expected = route_case(c);
      expected.set(0, logits);
      expected.run();
      run_on_cuda(actual, context());
      EXPECT_EQ(actual.values(2), expected.values(2)) << c.name();
      expect_close(actual.values(1), expected.values(1), tolerance(DType::kF32), c.name());
    }
  }
}

KernelCase backward_case(const Choice& c) {
  KernelCase forward = route_case(c);
  forward.run();
  KernelCase backward({"route_backward",
                       to_attributes(c.rule),
                       {read(DType::kF32, {c.tokens, c.experts}), read(DType::kF32, c.chosen()),
                        read(DType::kI32, c.chosen()), read(DType::kF32, c.chosen()),
                        write(DType::kF32, {c.tokens, c.experts})}});
  backward.set(0, forward.values(0));
  backward.set(1, forward.values(c.weights()));
  backward.set(2, forward.values(c.weights() + 1));
  return backward;
}

// Differences of sums of products up to 2.5.
TEST_F(RouterCudaTest, BackwardEqualsTheCpu) {
  for (const Choice& c : choices()) {
    expect_equals_cpu(backward_case(c), context(), rounded_once(1e-5, 1e-5), c.name());
  }
}

TEST_F(RouterCudaTest, IsBitwiseRepeatable) {
  const Choice c{
      33, 96, {.per_token = 6, .normalize = false, .groups = 12, .kept_groups = 3}, true};
  expect_repeatable([&] { return route_case(c); }, context());
  expect_repeatable([&] { return backward_case(c); }, context());
}

// Sequences with all, some and none of their rows here.
TEST_F(RouterCudaTest, CountsBySequenceEqualTheCpu) {
  for (const SequenceRows& rows : {SequenceRows{.sequence = 7}, SequenceRows{.sequence = 100},
                                   SequenceRows{.sequence = 300, .first = 250}}) {
    constexpr int64_t kTokens = 400;
    const int64_t sequences = rows.of(kTokens - 1) + 3;
    KernelCase kernel({"count_by_sequence",
                       to_attributes(rows),
                       {read(DType::kI32, {kTokens, 8}), write(DType::kF32, {sequences, 64})}});
    std::vector<double> chosen;
    for (int64_t i = 0; i < kTokens * 8; ++i) {
      chosen.push_back(static_cast<double>(i * i % 61 + i % 3));
    }
    kernel.set(0, chosen);
    expect_equals_cpu(std::move(kernel), context(), rounded_once(0),
                      fmt::format("{}", rows.sequence), 1);
  }
}

TEST_F(RouterCudaTest, RefusesMoreThanItHoldsInRegisters) {
  EXPECT_THROW(make_cuda_kernel(route_case({1, 513, {}}).spec(), context()), InternalError);
  EXPECT_THROW(make_cuda_kernel(route_case({1, 64, {.per_token = 33}}).spec(), context()),
               InternalError);
}

}  // namespace
}  // namespace braid
