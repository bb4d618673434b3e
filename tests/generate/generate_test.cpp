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

// Probabilities 5/8, 2/8, 1/8.
TEST(SampleToken, TopPTakesTheFewestThatHaveThatProbability) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};
  const auto last = [&](double top_p, int64_t top_k = 0) {
    return sample_token(logits, {.temperature = 1.0, .top_k = top_k, .top_p = top_p}, kBelowOne);
  };
  EXPECT_EQ(last(0.6), 2);
  EXPECT_EQ(last(0.63), 1);
  EXPECT_EQ(last(0.87), 1);
  EXPECT_EQ(last(0.88), 0);
  EXPECT_EQ(last(0.7, 2), 2);  // of the two likeliest: 5/7, 2/7
}

TEST(PenalizeRepetition, MakesTokensOfTheTextLessLikelyOnce) {
  std::vector<float> logits = {2.0f, -1.0f, 3.0f};
  penalize_repetition(std::vector<int32_t>{0, 1, 0}, 2.0, logits);
  EXPECT_EQ(logits, (std::vector<float>{1.0f, -2.0f, 3.0f}));
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

std::vector<Continuation> generate_all(const ModelSpec& model, int64_t max_context,
                                       const std::vector<Prompt>& prompts,
                                       const GenerationOptions& options,
                                       int64_t num_sequences = 1) {
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  Generator generator(model, initial_state(layout, model, 3), max_context, {.threads = 1},
                      num_sequences);
  std::vector<std::vector<int32_t>> seen(prompts.size());
  auto continuations = generator.generate(prompts, options, [&](size_t prompt, int32_t token) {
    seen[prompt].push_back(token);
    return true;
  });
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(continuations[i].tokens, seen[i]);
  }
  return continuations;
}

/// The prompt and what follows it.
std::vector<int32_t> generate_with(const ModelSpec& model, int64_t max_context,
                                   std::vector<int32_t> prompt, int64_t max_tokens,
                                   const SamplingOptions& sampling, uint64_t seed = 0,
                                   const std::vector<int32_t>& ends = {}) {
  const auto more = generate_all(model, max_context, {{.tokens = prompt, .seed = seed}},
                                 {.max_tokens = max_tokens, .ends = ends, .sampling = sampling});
  prompt.insert(prompt.end(), more[0].tokens.begin(), more[0].tokens.end());
  return prompt;
}

TEST(Generator, DependsOnTheSeedOnly) {
  const ModelSpec model = small_model(kLlamaStyle);
  const auto run = [&](uint64_t seed) {
    return generate_with(model, 48, {1, 2, 3}, 20, {.temperature = 1.5, .top_k = 0}, seed);
  };
  const auto tokens = run(1);
  EXPECT_EQ(run(1), tokens);
  EXPECT_NE(run(2), tokens);
}

// Past the context, and past the longest of the shorter programs.
TEST(Generator, GoesOnBeyondItsContextWithTokensOfTheVocabulary) {
  for (const ModelStyle& style : {kLlamaStyle, kGpt2Style}) {
    const ModelSpec model = small_model(style);
    const auto tokens = generate_with(model, 48, {5}, 60, {.temperature = 3.0, .top_k = 0}, 4);
    EXPECT_EQ(tokens.size(), 61u);
    for (const int32_t token : tokens) {
      EXPECT_GE(token, 0);
      EXPECT_LT(token, model.vocabulary);  // never one of the padding columns
    }
  }
}

TEST(Generator, GivesTheSameTokensWithAnyContextThatHoldsThem) {
  const ModelSpec model = small_model(kLlamaStyle);
  const SamplingOptions greedy{.temperature = 0.0};
  const auto tokens = generate_with(model, 48, {1, 2, 3}, 12, greedy);
  EXPECT_EQ(generate_with(model, 20, {1, 2, 3}, 12, greedy), tokens);
}

// The 21st token is drawn with a full context. The next ones follow the last half of a context, as
// if that were the prompt.
TEST(Generator, GoesOnWithTheLastHalfOfAFullContext) {
  const ModelSpec model = small_model(kLlamaStyle);
  const SamplingOptions greedy{.temperature = 0.0};
  const auto tokens = generate_with(model, 20, {1, 2, 3}, 24, greedy);
  const std::vector<int32_t> half(tokens.begin() + 11, tokens.begin() + 21);
  const auto rest = generate_with(model, 20, half, 6, greedy);
  EXPECT_EQ(std::vector<int32_t>(tokens.begin() + 11, tokens.end()), rest);
}

// More prompts than sequences, of other lengths and seeds, some of which end early.
TEST(Generator, GivesAPromptTheSameContinuationNextToAnyOthers) {
  const ModelSpec model = small_model(kLlamaStyle);
  std::vector<Prompt> prompts;
  for (int32_t i = 0; i < 7; ++i) {
    prompts.push_back({.tokens = {}, .seed = static_cast<uint64_t>(i)});
    for (int32_t k = 0; k <= 3 * i; ++k) {
      prompts.back().tokens.push_back((k + i) % 11);
    }
  }
  const GenerationOptions options{
      .max_tokens = 40,
      .ends = {7},
      .sampling = {.temperature = 1.2, .top_k = 0, .top_p = 0.9, .repetition_penalty = 1.2}};
  const auto alone = generate_all(model, 32, prompts, options);
  for (const int64_t num_sequences : {2, 3, 9}) {
    const auto together = generate_all(model, 32, prompts, options, num_sequences);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(together[i].tokens, alone[i].tokens) << i;
      EXPECT_EQ(together[i].end, alone[i].end) << i;
    }
  }
  EXPECT_TRUE(std::ranges::any_of(
      alone, [](const Continuation& it) { return it.end == GenerationEnd::kEndId; }));
}

TEST(Generator, EndsAPromptThatItsCallerStops) {
  const ModelSpec model = small_model(kLlamaStyle);
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  Generator generator(model, initial_state(layout, model, 3), 48, {.threads = 1}, 2);
  const std::vector<Prompt> prompts = {{.tokens = {1}}, {.tokens = {2}}};
  size_t first = 0;
  const auto found = generator.generate(prompts, {.max_tokens = 5}, [&](size_t prompt, int32_t) {
    return prompt != 0 || ++first < 3;
  });
  EXPECT_EQ(found[0].tokens.size(), 3u);
  EXPECT_EQ(found[0].end, GenerationEnd::kStopped);
  EXPECT_EQ(found[1].tokens.size(), 5u);
  EXPECT_EQ(found[1].end, GenerationEnd::kLength);
}

TEST(Generator, StopsBeforeTheFirstOfItsEnds) {
  const ModelSpec model = small_model(kLlamaStyle);
  const SamplingOptions options{.temperature = 1.5, .top_k = 0};
  const auto tokens = generate_with(model, 48, {1, 2, 3}, 20, options, 1);
  const int32_t end = tokens[10];
  const auto first = std::find(tokens.begin() + 3, tokens.end(), end);
  EXPECT_EQ(generate_with(model, 48, {1, 2, 3}, 20, options, 1, {end}),
            std::vector<int32_t>(tokens.begin(), first));
  EXPECT_EQ(generate_with(model, 48, {1, 2, 3}, 20, options, 1, {end, tokens[3]}),
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
                generator.generate(std::vector<Prompt>{{.tokens = {1, 2}}}, {},
                                   [](size_t, int32_t) { return true; });
              }),
              HasSubstr("after 2 tokens the model's logit of token "));
}

}  // namespace
}  // namespace braid
