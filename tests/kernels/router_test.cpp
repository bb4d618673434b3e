#include "ops/router.h"

#include <limits>
#include <numeric>

#include "support/kernel_harness.h"
#include "support/router_scores.h"

namespace braid {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Choice {
  RouterRule rule;
  int64_t tokens = 1;
  int64_t experts = 1;
  bool has_bias = false;
  ForcedChoice forced = {};
  bool given = false;

  size_t weights() const { return attributes().weights_operand(); }
  RouteAttributes attributes() const {
    return {.rule = rule, .has_bias = has_bias, .choice = forced, .source = {.given = given}};
  }
  Shape chosen() const { return {tokens, rule.per_token}; }
  std::string name() const {
    return fmt::format(
        "T {} E {} K {} sigmoid {} normalize {} groups {} of {} bias {} forced {} given {}", tokens,
        experts, rule.per_token, rule.sigmoid, rule.normalize, rule.kept_groups, rule.groups,
        has_bias, forced.forced, given);
  }
};

/// Every third expert, from that of the token's number: different ones, as 3 or fewer are chosen of
/// more than 9, or all of them in any order.
std::vector<size_t> given_choice(const Choice& c, size_t token) {
  const auto experts = static_cast<size_t>(c.experts);
  std::vector<size_t> chosen;
  for (size_t j = 0; j < static_cast<size_t>(c.rule.per_token); ++j) {
    chosen.push_back((token + (experts > 9 ? 3 * j : experts - j)) % experts);
  }
  return chosen;
}

void set_given(KernelCase& kernel, const Choice& c) {
  std::vector<double> given;
  for (size_t t = 0; t < static_cast<size_t>(c.tokens); ++t) {
    for (const size_t e : given_choice(c, t)) {
      given.push_back(static_cast<double>(e));
    }
  }
  kernel.set(c.weights() - 1, given);
}

KernelCase route_case(DType dtype, const Choice& c, uint64_t seed = 1) {
  std::vector<OperandSpec> operands = {read(dtype, {c.tokens, c.experts})};
  if (c.has_bias) {
    operands.push_back(read(dtype, {c.experts}));
  }
  if (c.given) {
    operands.push_back(read(DType::kI32, c.chosen()));
  }
  operands.push_back(write(dtype, c.chosen()));
  operands.push_back(write(DType::kI32, c.chosen()));
  KernelCase kernel({"route", to_attributes(c.attributes()), operands}, seed);
  if (c.given) {
    set_given(kernel, c);
  }
  return kernel;
}

KernelCase route_backward_case(DType dtype, const Choice& c) {
  return KernelCase(
      {"route_backward",
       to_attributes(c.rule),
       {read(dtype, {c.tokens, c.experts}), read(dtype, c.chosen()), read(DType::kI32, c.chosen()),
        read(dtype, c.chosen()), write(dtype, {c.tokens, c.experts})}});
}

/// Indices by descending value; of equal ones the lower first.
std::vector<size_t> descending(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  });
  return order;
}

/// The experts of a token, by sorting everything.
std::vector<size_t> naive_choice(const Choice& c, std::vector<double> keys) {
  const auto groups = static_cast<size_t>(c.rule.groups);
  const size_t size = keys.size() / groups;
  std::vector<double> group_scores;
  for (size_t g = 0; g < groups; ++g) {
    std::vector<double> group(keys.begin() + static_cast<ptrdiff_t>(g * size),
                              keys.begin() + static_cast<ptrdiff_t>((g + 1) * size));
    std::sort(group.rbegin(), group.rend());
    group_scores.push_back(group[0] + (c.rule.sigmoid && size > 1 ? group[1] : 0.0));
  }
  const auto order = descending(group_scores);
  for (size_t i = static_cast<size_t>(c.rule.kept_groups); i < groups; ++i) {
    for (size_t e = order[i] * size; e < (order[i] + 1) * size; ++e) {
      keys[e] = -kInfinity;
    }
  }
  auto chosen = descending(keys);
  chosen.resize(static_cast<size_t>(c.rule.per_token));
  return chosen;
}

std::vector<size_t> forced_choice(const Choice& c, size_t token) {
  const auto per_token = static_cast<size_t>(c.rule.per_token);
  std::vector<size_t> chosen;
  for (size_t j = 0; j < per_token; ++j) {
    chosen.push_back((token * per_token + j + static_cast<size_t>(c.forced.first)) %
                     static_cast<size_t>(c.experts));
  }
  return chosen;
}

struct NaiveRoute {
  std::vector<double> weights;
  std::vector<double> experts;
};

NaiveRoute naive_route(const Choice& c, const std::vector<double>& logits,
                       const std::vector<double>& bias) {
  NaiveRoute result;
  const auto experts = static_cast<size_t>(c.experts);
  for (size_t t = 0; t < static_cast<size_t>(c.tokens); ++t) {
    const std::vector<double> row(logits.begin() + static_cast<ptrdiff_t>(t * experts),
                                  logits.begin() + static_cast<ptrdiff_t>((t + 1) * experts));
    const auto scores = scores_of(row, c.rule.sigmoid);
    auto keys = scores;
    for (size_t e = 0; e < bias.size(); ++e) {
      keys[e] += bias[e];
    }
    const auto chosen = c.given           ? given_choice(c, t)
                        : c.forced.forced ? forced_choice(c, t)
                                          : naive_choice(c, keys);
    double sum = c.rule.normalize ? (c.rule.sigmoid ? 1e-20 : 0.0) : 1.0;
    for (const size_t e : chosen) {
      sum += c.rule.normalize ? scores[e] : 0.0;
    }
    for (const size_t e : chosen) {
      result.weights.push_back(c.rule.scale * scores[e] / sum);
      result.experts.push_back(static_cast<double>(e));
    }
  }
  return result;
}

/// Logits of each token are a permutation of numbers 3 / E apart, so that neither rounding nor the
/// steps of central differences change a choice without groups or bias.
std::vector<double> spread_logits(int64_t tokens, int64_t experts, uint64_t seed) {
  TestRandom random(seed);
  std::vector<double> logits;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<double> row;
    for (int64_t e = 0; e < experts; ++e) {
      row.insert(row.begin() + random.below(e + 1),
                 3.0 * static_cast<double>(e) / static_cast<double>(experts) - 1);
    }
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

std::vector<RouterRule> rules(int64_t per_token, int64_t groups, int64_t kept_groups) {
  std::vector<RouterRule> list;
  for (const bool of_sigmoid : {false, true}) {
    for (const bool normalize : {false, true}) {
      list.push_back({.per_token = per_token,
                      .sigmoid = of_sigmoid,
                      .normalize = normalize,
                      .scale = 2.5,
                      .groups = groups,
                      .kept_groups = kept_groups});
    }
  }
  return list;
}

std::vector<Choice> choices() {
  std::vector<Choice> list;
  const auto add = [&](int64_t tokens, int64_t experts, const std::vector<RouterRule>& of) {
    for (const RouterRule& rule : of) {
      for (const bool has_bias : {false, true}) {
        list.push_back({rule, tokens, experts, has_bias});
      }
      list.push_back({rule, tokens, experts, false, {.forced = true, .first = 4}});
      list.push_back({rule, tokens, experts, rule.sigmoid, {}, true});
    }
  };
  add(1, 1, rules(1, 1, 1));
  add(3, 5, rules(5, 1, 1));  // all experts
  add(7, 6, rules(2, 1, 1));
  add(9, 12, rules(3, 4, 2));
  add(4, 6, rules(2, 6, 2));  // groups of one expert
  add(5, 12, rules(3, 4, 4));
  return list;
}

// This is how gpt-oss makes them.
TEST(Route, NormalizedWeightsAreASoftmaxOfTheChosenLogits) {
  const Choice choice{.rule = {.per_token = 4}, .tokens = 9, .experts = 32};
  KernelCase kernel = route_case(DType::kF64, choice);
  kernel.run(1);
  const std::vector<double> logits = kernel.values(0);
  const std::vector<double> experts = kernel.values(2);
  std::vector<double> expected;
  for (size_t token = 0; token < 9; ++token) {
    std::vector<double> chosen;
    for (size_t j = 0; j < 4; ++j) {
      chosen.push_back(logits[token * 32 + static_cast<size_t>(experts[token * 4 + j])]);
    }
    const std::vector<double> weights = scores_of(chosen, false);
    expected.insert(expected.end(), weights.begin(), weights.end());
  }
  expect_close(kernel.values(1), expected, sum_tolerance(DType::kF64, 32), "weights");
}

TEST(Route, EqualsAFullSort) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Choice& c : choices()) {
      KernelCase kernel = route_case(dtype, c);
      kernel.set(0, spread_logits(c.tokens, c.experts, 7));
      kernel.run(2);
      const NaiveRoute expected =
          naive_route(c, kernel.values(0), c.has_bias ? kernel.values(1) : std::vector<double>());
      EXPECT_EQ(kernel.values(c.weights() + 1), expected.experts) << c.name();
      expect_close(kernel.values(c.weights()), expected.weights,
                   {.relative = 16 * rounding_error(dtype)}, c.name());
    }
  }
}

TEST(Route, OfEqualLogitsChoosesTheLowerNumbers) {
  for (const bool of_sigmoid : {false, true}) {
    Choice c{{.per_token = 3, .sigmoid = of_sigmoid}, 2, 6};
    KernelCase kernel = route_case(DType::kF32, c);
    kernel.set(0, {1, 1, 1, 1, 1, 1, 0, 2, 0, 2, 0, 2});
    kernel.run();
    EXPECT_EQ(kernel.values(2), (std::vector<double>{0, 1, 2, 1, 3, 5}));
    c.rule.groups = 3;  // of which the first two are as good as the third
    c.rule.kept_groups = 2;
    KernelCase grouped = route_case(DType::kF32, c);
    grouped.set(0, {1, 1, 1, 1, 1, 1, 0, 2, 0, 2, 0, 2});
    grouped.run();
    EXPECT_EQ(grouped.values(2), (std::vector<double>{0, 1, 2, 1, 3, 0}));
  }
}

// The loss shows a NaN, and no expert is chosen twice or does not exist.
TEST(Route, OfNumbersThatAreNoneGivesNanAndSomeExperts) {
  const std::vector<std::vector<double>> rows = {{0, 1, kNan, 2, 3, -1},
                                                 {kNan, kNan, kNan, kNan, kNan, kNan},
                                                 {0, kNan, 1, kInfinity, -kInfinity, 2}};
  for (const std::vector<double>& row : rows) {
    for (Choice c : choices()) {
      if (c.experts != 6 || c.has_bias || c.forced.forced ||
          c.given) {  // the last two read the chosen logits only
        continue;
      }
      c.tokens = 1;
      KernelCase kernel = route_case(DType::kF32, c);
      kernel.set(0, row);
      kernel.run();
      const auto experts = kernel.values(2);
      EXPECT_NE(experts[0], experts[1]) << c.name();
      EXPECT_TRUE(experts[0] >= 0 && experts[0] < 6 && experts[1] >= 0 && experts[1] < 6);
      EXPECT_TRUE(std::isnan(kernel.values(1)[0])) << c.name();
    }
  }
}

TEST(Route, OfInfiniteLogitsGivesNanWithSoftmax) {
  const Choice c{{.per_token = 2}, 2, 4};
  KernelCase kernel = route_case(DType::kF32, c);
  kernel.set(0, {0, kInfinity, 1, 2, -kInfinity, -kInfinity, -kInfinity, -kInfinity});
  kernel.run();
  EXPECT_EQ(kernel.values(2), (std::vector<double>{1, 3, 0, 1}));
  for (const double weight : kernel.values(1)) {
    EXPECT_TRUE(std::isnan(weight));
  }
}

// A bias can choose experts whose softmax is 0 in f32.
TEST(Route, NormalisesScoresThatUnderflow) {
  const Choice c{{.per_token = 2}, 1, 4, true};
  KernelCase kernel = route_case(DType::kF32, c);
  kernel.set(0, {300, 1, 1, 300});
  kernel.set(1, {-1, 5, 5, -1});
  kernel.run();
  EXPECT_EQ(kernel.values(3), (std::vector<double>{1, 2}));
  EXPECT_EQ(kernel.values(2), (std::vector<double>{0.5, 0.5}));
}

/// The sum of the weights times `d_weights`, as a function of the logits.
double weighted(const Choice& c, const std::vector<double>& bias, const std::vector<double>& logits,
                const std::vector<double>& d_weights) {
  KernelCase kernel = route_case(DType::kF64, c);
  kernel.set(0, logits);
  if (c.has_bias) {
    kernel.set(1, bias);
  }
  kernel.run();
  return dot(kernel.values(c.weights()), d_weights);
}

KernelCase backward_of(const Choice& c, const KernelCase& forward, DType dtype) {
  KernelCase backward = route_backward_case(dtype, c);
  backward.set(0, forward.values(0));
  backward.set(1, forward.values(c.weights()));
  backward.set(2, forward.values(c.weights() + 1));
  return backward;
}

TEST(RouteBackward, AgreesWithDifferences) {
  for (const Choice& c : choices()) {
    KernelCase forward = route_case(DType::kF64, c);
    forward.set(0, spread_logits(c.tokens, c.experts, 3));
    forward.run();
    const auto bias = c.has_bias ? forward.values(1) : std::vector<double>();
    KernelCase backward = backward_of(c, forward, DType::kF64);
    backward.run();
    const auto d_weights = backward.values(3);
    expect_gradient(
        [&](const std::vector<double>& logits) { return weighted(c, bias, logits, d_weights); },
        forward.values(0), backward.values(4), c.name());
  }
}

TEST(RouteBackward, OfF32IsThatOfF64) {
  for (const Choice& c : choices()) {
    KernelCase forward = route_case(DType::kF32, c);
    forward.set(0, spread_logits(c.tokens, c.experts, 3));
    forward.run();
    KernelCase narrow = backward_of(c, forward, DType::kF32);
    KernelCase exact = backward_of(c, forward, DType::kF64);
    exact.set(3, narrow.values(3));
    narrow.run(2);
    exact.run();
    // Differences of weights, which are up to 2.5.
    expect_close(narrow.values(4), exact.values(4), {.absolute = 64 * rounding_error(DType::kF32)},
                 c.name());
  }
}

// Golden values, from PyTorch and by hand.

const std::vector<double> kLogits = {1, 2, .5, -1, 0, -.5, 1.5, 1, 2, 1, 0, 3};
const std::vector<double> kDWeights = {.3, -.1, .2, .5, -.4, .1};
constexpr Tolerance kSevenDigits{.absolute = 6e-8};

TEST(Route, HasTheGoldenValuesOfBothSoftmaxes) {
  Choice c{{.per_token = 2}, 3, 4};
  KernelCase forward = route_case(DType::kF64, c);
  forward.set(0, kLogits);
  forward.run();
  EXPECT_EQ(forward.values(2), (std::vector<double>{1, 0, 2, 3, 3, 0}));
  expect_close(forward.values(1), {.7310586, .2689414, .6224593, .3775407, .7310586, .2689414},
               kSevenDigits);
  KernelCase backward = backward_of(c, forward, DType::kF64);
  backward.set(3, kDWeights);
  backward.run();
  expect_close(backward.values(4),
               {-.0786448, .0786448, 0, 0, 0, 0, -.0705011, .0705011, .098306, 0, 0, -.098306},
               kSevenDigits, "renormalised");

  c.rule.normalize = false;
  KernelCase plain = route_case(DType::kF64, c);
  plain.set(0, kLogits);
  plain.run();
  KernelCase of_plain = backward_of(c, plain, DType::kF64);
  of_plain.set(3, kDWeights);
  of_plain.run();
  expect_close(of_plain.values(4),
               {-.0583876, .0850701, -.021815, -.0048676, -.0290825, -.0176394, -.0285574, .0752793,
                .0790898, .0203811, .0074978, -.1069687},
               kSevenDigits, "plain");
}

TEST(Route, HasTheGoldenValuesOfDeepSeekV3) {
  const Choice c{
      {.per_token = 3, .sigmoid = true, .scale = 2.5, .groups = 4, .kept_groups = 2}, 1, 8, true};
  KernelCase forward = route_case(DType::kF64, c);
  forward.set(0, {.2, -.4, 1, .1, -1, 2, 0, .3});
  forward.set(1, {0, .3, 0, 0, .1, -.4, 0, 0});
  forward.run();
  EXPECT_EQ(forward.values(3), (std::vector<double>{2, 1, 0}));
  expect_close(forward.values(2), {1.0864589, .5964082, .8171329}, kSevenDigits);
  KernelCase backward = backward_of(c, forward, DType::kF64);
  backward.set(3, {.3, -.2, .1});
  backward.run();
  expect_close(backward.values(4), {-.0056456, -.1125988, .0539542, 0, 0, 0, 0, 0}, kSevenDigits);
}

TEST(Route, WorkersDoNotChangeResults) {
  const Choice c{{.per_token = 4, .sigmoid = true, .groups = 8, .kept_groups = 4}, 2000, 64, true};
  expect_same_for_any_workers([&] { return route_case(DType::kF32, c); });
  expect_same_for_any_workers([&] {
    KernelCase forward = route_case(DType::kF32, c);
    forward.run(2);
    return backward_of(c, forward, DType::kF32);
  });
}

KernelCase count_case(DType dtype, const Shape& chosen, int64_t experts, bool accumulate) {
  OperandSpec d_bias = write(dtype, {experts});
  d_bias.access = accumulate ? Access::kReadWrite : Access::kWrite;
  return KernelCase({"count_choices",
                     to_attributes(RouterGradAttributes{.accumulate = accumulate}),
                     {read(DType::kI32, chosen), d_bias}});
}

// 10 tokens choose two of four experts each: 5, 3, 9, 3 times. The mean is 5, gcd(4, 2) = 2.
TEST(CountChoices, ComparesWithTheMean) {
  const std::vector<double> chosen{2, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 1, 2, 1, 2, 1, 2, 3, 3, 3};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    KernelCase first = count_case(dtype, {10, 2}, 4, false);
    KernelCase more = count_case(dtype, {10, 2}, 4, true);
    first.set(0, chosen);
    more.set(0, chosen);
    more.set(1, {1, 2, 3, 4});
    first.run();
    more.run(2);
    EXPECT_EQ(first.values(1), (std::vector<double>{0, -4, 8, -4}));
    EXPECT_EQ(more.values(1), (std::vector<double>{1, -2, 11, 0}));
  }
}

// Of three sequences of four rows, this rank has the last two rows of the first and the next three;
// the third has none here.
TEST(CountBySequence, CountsTheRowsOfEachSequence) {
  KernelCase kernel({"count_by_sequence",
                     to_attributes(SequenceRows{.sequence = 4, .first = 2}),
                     {read(DType::kI32, {5, 2}), write(DType::kF32, {3, 4})}});
  kernel.set(0, {0, 1, 0, 3, /**/ 2, 1, 2, 0, 2, 3});
  kernel.run(2);
  EXPECT_EQ(kernel.values(1), (std::vector<double>{2, 1, 0, 1, 1, 1, 3, 1, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace braid
