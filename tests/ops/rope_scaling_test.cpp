#include "ops/rope_scaling.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/rope.h"
#include "ops/specs.h"

namespace braid {
namespace {

const RopeScaling kLlama32{
    .type = RopeType::kLlama3, .factor = 32, .original_max_position_embeddings = 8192};
const RopeScaling kDeepseekV3{.type = RopeType::kYarn,
                              .factor = 40,
                              .original_max_position_embeddings = 4096,
                              .mscale = 1,
                              .mscale_all_dim = 1};
const RopeScaling kGptOss{.type = RopeType::kYarn,
                          .factor = 32,
                          .original_max_position_embeddings = 4096,
                          .truncate = false};

/// Of six rotated elements.
const RopeScaling kLongrope{.type = RopeType::kLongrope,
                            .factor = 32,
                            .original_max_position_embeddings = 4096,
                            .short_factor = "1, 1.25, 2",
                            .long_factor = "1,1.5 , 40.123456789012345"};

struct Golden {
  size_t pair;
  double frequency;
};

/// Hugging Face's numbers are in f32, and so are its powers: a few roundings of 6e-8, of which the
/// bounds of a ramp make more.
void expect_frequencies(const std::vector<double>& found, const std::vector<Golden>& expected,
                        const char* name) {
  for (const Golden& golden : expected) {
    EXPECT_NEAR(found.at(golden.pair) / golden.frequency, 1.0, 3e-6)
        << name << ", pair " << golden.pair;
  }
}

// Golden values: ROPE_INIT_FUNCTIONS of transformers 5.24 with the parameters of published models.
TEST(RopeFrequencies, AreThoseOfTransformers) {
  expect_frequencies(rope_frequencies(16, 10000, {.type = RopeType::kLinear, .factor = 4}),
                     {{0, 0.25}, {1, 0.079056941}, {4, 0.0024999999}, {7, 7.9056947e-05}},
                     "linear");
  expect_frequencies(
      rope_frequencies(64, 500000, kLlama32),
      {{0, 1.0}, {12, 0.0072926651}, {16, 0.00042955671}, {20, 8.5702559e-06}, {31, 9.4183065e-08}},
      "Llama 3.2 1B");
  RopeScaling llama31 = kLlama32;
  llama31.factor = 8;
  expect_frequencies(rope_frequencies(128, 500000, llama31),
                     {{24, 0.0072926651}, {32, 0.00052484602}, {40, 3.4281024e-05}},
                     "Llama 3.1 8B");
  expect_frequencies(rope_frequencies(64, 10000, kDeepseekV3),
                     {{8, 0.1},
                      {12, 0.026879361},
                      {16, 0.0055000004},
                      {20, 0.00079056941},
                      {24, 2.4999999e-05},
                      {31, 3.3338035e-06}},
                     "DeepSeek-V3");
  expect_frequencies(rope_frequencies(64, 150000, kGptOss),
                     {{8, 0.050813273},
                      {12, 0.0067949593},
                      {16, 0.00045648392},
                      {20, 1.8188337e-05},
                      {24, 4.0999785e-06}},
                     "gpt-oss");
  // Bounds that fall together are a step, and bounds below 0 leave no ramp.
  expect_frequencies(
      rope_frequencies(
          8, 10000, {.type = RopeType::kYarn, .factor = 4, .original_max_position_embeddings = 4}),
      {{0, 1.0}, {1, 0.025}, {2, 0.0024999999}, {3, 0.00025}}, "step");
}

// As _compute_longrope_parameters of transformers 5.24: 1 / (factor theta^(2i/R)), in doubles here.
TEST(RopeFrequencies, OfLongropeFollowTheTokensOfASequence) {
  const std::vector<double> short_factors = {1, 1.25, 2};
  const std::vector<double> long_factors = {1, 1.5, 40.123456789012345};
  for (const auto& [tokens, factors] : {std::pair{int64_t{1}, short_factors},
                                        {4096, short_factors},
                                        {4097, long_factors},
                                        {131072, long_factors}}) {
    const std::vector<double> found = rope_frequencies(6, 10000, kLongrope.for_tokens(tokens));
    ASSERT_EQ(found.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_DOUBLE_EQ(found[i],
                       std::pow(10000.0, -2.0 * static_cast<double>(i) / 6.0) / factors[i])
          << tokens << " tokens, pair " << i;
    }
  }
  EXPECT_EQ(kLlama32.for_tokens(100000), kLlama32);
  const RopeScaling one = kLongrope.for_tokens(5000);
  EXPECT_EQ(one.for_tokens(1), one);
}

TEST(RopeFactors, AreReadAndWrittenWithAllBits) {
  EXPECT_EQ(rope_factors("1, 1.5,40.123456789012345"),
            (std::vector<double>{1, 1.5, 40.123456789012345}));
  EXPECT_EQ(rope_factor_list({1, 1.1, 2.000000000000001}), "1, 1.1, 2.000000000000001");
  for (const char* const bad : {"", "1,,2", "1, x", "1, -2", "0", "1 2", "inf", "nan", "1,2,"}) {
    EXPECT_TRUE(rope_factors(bad).empty()) << bad;
  }
}

TEST(RopeFrequencies, AreUnscaledWithoutAType) {
  const std::vector<double> plain = rope_frequencies(6, 100, {});
  ASSERT_EQ(plain.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plain[i], std::pow(100.0, -2.0 * static_cast<double>(i) / 6.0));
  }
}

TEST(RopeAmplitude, IsTheAttentionFactorOfTransformers) {
  EXPECT_EQ(rope_amplitude({}), 1.0);
  EXPECT_EQ(rope_amplitude(kLlama32), 1.0);
  EXPECT_EQ(rope_amplitude(kDeepseekV3), 1.0);
  EXPECT_DOUBLE_EQ(rope_amplitude(kGptOss), 1.3465735902799727);
  RopeScaling unequal = kDeepseekV3;
  unequal.mscale_all_dim = 0.707;
  EXPECT_DOUBLE_EQ(rope_amplitude(unequal), 1.0857263992561355);
  unequal.attention_factor = 1.25;
  EXPECT_EQ(rope_amplitude(unequal), 1.25);
  EXPECT_DOUBLE_EQ(rope_amplitude(kLongrope), 1.1902380714238083);
  RopeScaling given = kLongrope;
  given.attention_factor = 1.5;
  EXPECT_EQ(rope_amplitude(given), 1.5);
  given = {.type = RopeType::kLongrope, .factor = 1, .original_max_position_embeddings = 64};
  EXPECT_EQ(rope_amplitude(given), 1.0);
}

TEST(RopeScoreScale, IsDeepseeksMscaleSquared) {
  const double m = 0.1 * std::log(40.0) + 1.0;
  EXPECT_DOUBLE_EQ(rope_score_scale(kDeepseekV3), m * m);
  EXPECT_EQ(rope_score_scale(kGptOss), 1.0);
  EXPECT_EQ(rope_score_scale(kLlama32), 1.0);
}

TEST(RopeScaling, AttributesAreThoseOfItsType) {
  const auto names = [](const RopeScaling& scaling) {
    std::vector<std::string> found;
    for (const Attribute& attribute : to_attributes(scaling)) {
      found.push_back(attribute.name);
    }
    return found;
  };
  EXPECT_EQ(names(kLlama32),
            (std::vector<std::string>{"rope_type", "factor", "original_max_position_embeddings",
                                      "low_freq_factor", "high_freq_factor"}));
  EXPECT_EQ(names({.type = RopeType::kLinear}), (std::vector<std::string>{"rope_type", "factor"}));
  for (const RopeScaling& scaling : {RopeScaling{}, kLlama32, kDeepseekV3, kGptOss, kLongrope}) {
    const RopeAttributes attributes{
        .heads = 1, .kv_heads = 1, .head_size = 4, .sequence = 2, .scaling = scaling};
    const OpSpec spec{"rope",
                      to_attributes(attributes),
                      {read(DType::kF32, {2, 12}), write(DType::kF32, {2, 12})}};
    EXPECT_EQ(attributes_of<RopeAttributes>(spec).scaling, scaling);
    RopeAttributes plain = attributes;
    plain.scaling = {};
    EXPECT_EQ(without_rope_scaling(spec).attributes, to_attributes(plain));
  }
}

TEST(RopeScaling, NamesParametersThatCannotBe) {
  struct Bad {
    RopeScaling scaling;
    const char* parameter;
  };
  const auto changed = [](RopeScaling scaling, auto change) {
    change(scaling);
    return scaling;
  };
  const Bad cases[] = {
      {{.type = RopeType::kLinear, .factor = 0.5}, "factor"},
      {{.type = RopeType::kYarn, .factor = 2}, "original_max_position_embeddings"},
      {changed(kLlama32, [](RopeScaling& s) { s.low_freq_factor = 4; }), "low_freq_factor"},
      {changed(kGptOss, [](RopeScaling& s) { s.beta_slow = 32; }), "beta_slow"},
      {changed(kGptOss, [](RopeScaling& s) { s.mscale = -1; }), "mscale"},
      {changed(kGptOss, [](RopeScaling& s) { s.attention_factor = NAN; }), "attention_factor"},
      {changed(kLongrope, [](RopeScaling& s) { s.attention_factor = -1; }), "attention_factor"},
      {changed(kLongrope, [](RopeScaling& s) { s.original_max_position_embeddings = 1; }),
       "original_max_position_embeddings"},
  };
  for (const Bad& bad : cases) {
    const std::optional<RopeFault> fault = rope_fault(bad.scaling);
    ASSERT_TRUE(fault) << bad.parameter;
    EXPECT_EQ(fault->parameter, bad.parameter);
    const RopeAttributes attributes{
        .heads = 1, .kv_heads = 1, .head_size = 4, .sequence = 2, .scaling = bad.scaling};
    expect_refused({"rope",
                    to_attributes(attributes),
                    {read(DType::kF32, {2, 12}), write(DType::kF32, {2, 12})}},
                   bad.parameter);
  }
  for (const RopeScaling& good : {RopeScaling{}, kLlama32, kDeepseekV3, kGptOss, kLongrope}) {
    EXPECT_FALSE(rope_fault(good));
  }
}

}  // namespace
}  // namespace braid
