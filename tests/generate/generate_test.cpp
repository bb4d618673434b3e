#include "generate/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "base/errors.h"
#include "base/expect_error.h"
#include "model/parameters.h"
#include "support/model_state.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const double kBelowOne = std::nextafter(1.0, 0.0);
const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, 3.0f, -5.0f};

int32_t sample(const std::vector<float>& logits, double temperature, int64_t top_k,
               double uniform) {
  return sample_token(logits, {.temperature = temperature, .top_k = top_k}, uniform);
}

TEST(SampleToken, OfTemperatureZeroIsTheLikeliestAndOfTiesTheFirst) {
  for (const double uniform : {0.0, 0.5, kBelowOne}) {
    EXPECT_EQ(sample(kLogits, 0.0, 0, uniform), 1);
    EXPECT_EQ(sample(kLogits, 0.0, 3, uniform), 1);
    EXPECT_EQ(sample(kLogits, 0.8, 1, uniform), 1);
  }
}

// Likelier tokens come first, ties by index.
TEST(SampleToken, EdgesOfTheDrawAreTheLikeliestAndTheLeastLikely) {
  EXPECT_EQ(sample(kLogits, 1.0, 0, 0.0), 1);
  EXPECT_EQ(sample(kLogits, 1.0, 0, kBelowOne), 4);
  EXPECT_EQ(sample(kLogits, 1.0, 3, kBelowOne), 2);
  EXPECT_EQ(sample(kLogits, 1.0, 2, kBelowOne), 3);
}

TEST(SampleToken, TopKAboveTheVocabularyIsAll) {
  EXPECT_EQ(sample(kLogits, 1.0, 100, kBelowOne), 4);
}

TEST(SampleToken, TopKOfTiesTakesTheFirst) {
  const std::vector<float> equal(6, 0.5f);
  std::set<int32_t> drawn;
  for (int i = 0; i < 100; ++i) {
    drawn.insert(sample(equal, 1.0, 3, i / 100.0));
  }
  EXPECT_EQ(drawn, (std::set<int32_t>{0, 1, 2}));
}

TEST(SampleToken, DrawsInProportionToTheSoftmax) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};
  std::vector<int> counts(3);
  for (int i = 0; i < 8000; ++i) {
    ++counts[static_cast<size_t>(sample(logits, 1.0, 0, (i + 0.5) / 8000.0))];
  }
  EXPECT_NEAR(counts[0], 1000, 1);
  EXPECT_NEAR(counts[1], 2000, 1);
  EXPECT_NEAR(counts[2], 5000, 1);
}

// Temperature 2 halves the logits: odds of 4 become odds of 2.
TEST(SampleToken, TemperatureDividesTheLogits) {
  const std::vector<float> logits = {0.0f, std::log(4.0f)};
  EXPECT_EQ(sample(logits, 2.0, 0, 0.66), 1);
  EXPECT_EQ(sample(logits, 2.0, 0, 0.67), 0);
  EXPECT_EQ(sample(logits, 1.0, 0, 0.79), 1);
  EXPECT_EQ(sample(logits, 1e-3, 0, kBelowOne), 1);
}

TEST(SampleToken, NanIsTheLeastLikely) {
  const std::vector<float> logits = {kNan, 1.0f, kNan, 2.0f};
  EXPECT_EQ(sample(logits, 0.0, 0, 0.0), 3);
  for (const double uniform : {0.0, 0.5, kBelowOne}) {
    const int32_t token = sample(logits, 1.0, 0, uniform);
    EXPECT_TRUE(token == 1 || token == 3) << token;
  }
}

ModelSpec small_model(const ModelStyle& style) {
  return {.style = style,
          .layers = 2,
          .width = 16,
          .heads = 2,
          .kv_heads = 2,
          .head_size = 8,
          .ffn = 24,
          .vocabulary = 11,
          .max_positions = 48,
          .init_std = 0.5};
}

std::vector<int32_t> generate_with(const ModelSpec& model, int64_t max_context,
                                   const std::vector<int32_t>& prompt, int64_t max_tokens,
                                   const SamplingOptions& options,
                                   const std::vector<int32_t>& ends = {}) {
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  Generator generator(model, initial_state(layout, model, 3), max_context, {.threads = 1});
  std::vector<int32_t> seen;
  auto tokens = generator.generate(prompt, max_tokens, ends, options,
                                   [&](int32_t token) { seen.push_back(token); });
  EXPECT_EQ(tokens.size(), prompt.size() + seen.size());
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), tokens.begin()));
  EXPECT_TRUE(
      std::equal(seen.begin(), seen.end(), tokens.begin() + static_cast<ptrdiff_t>(prompt.size())));
  return tokens;
}

TEST(Generator, DependsOnTheSeedOnly) {
  const ModelSpec model = small_model(kLlamaStyle);
  const auto run = [&](uint64_t seed) {
    return generate_with(model, 48, {1, 2, 3}, 20, {.temperature = 1.5, .top_k = 0, .seed = seed});
  };
  const auto tokens = run(1);
  EXPECT_EQ(run(1), tokens);
  EXPECT_NE(run(2), tokens);
}

// Past the context, and past the longest of the shorter programs.
TEST(Generator, GoesOnBeyondItsContextWithTokensOfTheVocabulary) {
  for (const ModelStyle& style : {kLlamaStyle, kGpt2Style}) {
    const ModelSpec model = small_model(style);
    const auto tokens =
        generate_with(model, 48, {5}, 60, {.temperature = 3.0, .top_k = 0, .seed = 4});
    EXPECT_EQ(tokens.size(), 61u);
    for (const int32_t token : tokens) {
      EXPECT_GE(token, 0);
      EXPECT_LT(token, model.vocabulary);  // never one of the padding columns
    }
  }
}

// A context of 40 runs the program of 48 rows, one of 20 that of 32: padding changes nothing.
TEST(Generator, GivesTheSameTokensWithAnyProgramThatHoldsTheContext) {
  const ModelSpec model = small_model(kLlamaStyle);
  const SamplingOptions greedy{.temperature = 0.0};
  const auto tokens = generate_with(model, 48, {1, 2, 3}, 12, greedy);
  EXPECT_EQ(generate_with(model, 20, {1, 2, 3}, 12, greedy), tokens);
}

TEST(Generator, StopsBeforeTheFirstOfItsEnds) {
  const ModelSpec model = small_model(kLlamaStyle);
  const SamplingOptions options{.temperature = 1.5, .top_k = 0, .seed = 1};
  const auto tokens = generate_with(model, 48, {1, 2, 3}, 20, options);
  const int32_t end = tokens[10];
  const auto first = std::find(tokens.begin() + 3, tokens.end(), end);
  EXPECT_EQ(generate_with(model, 48, {1, 2, 3}, 20, options, {end}),
            std::vector<int32_t>(tokens.begin(), first));
  EXPECT_EQ(generate_with(model, 48, {1, 2, 3}, 20, options, {end, tokens[3]}),
            std::vector<int32_t>(tokens.begin(), tokens.begin() + 3));
}

TEST(Generator, OfNoTokensReturnsThePrompt) {
  EXPECT_EQ(generate_with(small_model(kLlamaStyle), 8, {1, 2}, 0, {}),
            (std::vector<int32_t>{1, 2}));
}

TEST(Generator, RefusesMemoryThatIsTooSmallWithTheLongestContextThatFits) {
  const ModelSpec model = small_model(kLlamaStyle);
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const auto state = initial_state(layout, model, 3);
  const auto refusal_of = [&](int64_t context, int64_t free_bytes) {
    return message_of<ConfigError>(
        [&] { Generator(model, state, context, {.free_bytes = free_bytes}); });
  };
  const std::string large = refusal_of(int64_t{1} << 14, int64_t{4} << 20);
  for (const char* part : {"1 rank needs ", " of memory, this machine has 4.00 MiB free: weights ",
                           ", activations ", "; nearest valid setting: --context "}) {
    EXPECT_THAT(large, HasSubstr(part));
  }
  const int64_t fits = std::stoll(large.substr(large.find("--context ") + 10));
  EXPECT_NO_THROW(Generator(model, state, fits, {.free_bytes = int64_t{4} << 20}));
  EXPECT_THAT(refusal_of(2 * fits, int64_t{4} << 20),
              HasSubstr("setting: --context " + std::to_string(fits) + " ("));
  EXPECT_THAT(refusal_of(32, 1000), HasSubstr("no shorter --context fits"));
}

TEST(Generator, RefusesAPromptOutsideTheVocabulary) {
  const ModelSpec model = small_model(kLlamaStyle);
  for (const int32_t token : {-1, 11}) {
    EXPECT_THAT(
        message_of<ConfigError>([&] {
          generate_with(model, 8, {0, token}, 4, {});
        }),
        HasSubstr(fmt::format("prompt token {}: the model's vocabulary has 11 ids", token)));
  }
}

TEST(Generator, SaysThatTheModelGivesNoNumbers) {
  const ModelSpec model = small_model(kLlamaStyle);
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  ModelState state = initial_state(layout, model, 3);
  std::ranges::fill(elements_of(layout, "head.norm.weight", state.weights), 1e38f);
  Generator generator(model, state, 8, {.threads = 1});
  EXPECT_THAT(message_of<DataError>([&] {
                generator.generate({1, 2}, 1, {}, {}, [](int32_t) {});
              }),
              HasSubstr("after 2 tokens the model's logit of token "));
}

}  // namespace
}  // namespace braid
