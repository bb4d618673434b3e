#include "evaluate/held_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "evaluate/continuation.h"
#include "evaluate/token_scores.h"
#include "hugging_face/model_config.h"
#include "hugging_face/tensor_folder.h"
#include "state/hugging_face_source.h"
#include "support/hugging_face_model.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

/// f32 here, f64 there: some hundred roundings of 1e-7 in logits of about 1.
constexpr double kTolerance = 1e-5;
constexpr int64_t kWindow = 6;

TEST(ScoreLogits, IsTheLogarithmOfTheSoftmax) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f};
  const double sum = std::exp(-2.0) + 1 + std::exp(-1.0) + 1;
  EXPECT_NEAR(score_logits(logits, 2).logprob, -1 - std::log(sum), 1e-12);
  EXPECT_NEAR(score_logits(logits, 3).logprob, -std::log(sum), 1e-12);
  EXPECT_TRUE(score_logits(logits, 1).is_greedy);
  EXPECT_FALSE(score_logits(logits, 3).is_greedy);  // as likely, with a higher id
  EXPECT_NEAR(score_logits(std::vector<float>{-1e4f, 1e4f}, 0).logprob, -2e4, 1e-9);
  EXPECT_THROW(score_logits(logits, 4), InternalError);
}

/// A Hugging Face model of loops over doubles, and ours with its weights.
class HeldOutTest : public ::testing::Test {
 protected:
  std::unique_ptr<CausalModel> load(bool computes_loss = false) const {
    theirs_.write(folder_ / "m", DType::kF32);
    const HfTensorFolder files(folder_ / "m");
    const ModelSpec model = parse_hf_config(theirs_.config, "config.json").model;
    const ParameterLayout layout = make_parameter_layout(model_parameters(model));
    return std::make_unique<CausalModel>(
        model, HuggingFaceSource(files, layout, model), kWindow,
        CausalModelOptions{.threads = 1, .computes_loss = computes_loss});
  }

  /// ln of the probability of the last token after the others.
  double logprob_of(std::span<const int32_t> tokens) const {
    const std::vector<double> logits = theirs_.logits(tokens.first(tokens.size() - 1));
    double sum = 0;
    for (const double logit : logits) {
      sum += std::exp(logit);
    }
    return logits[static_cast<size_t>(tokens.back())] - std::log(sum);
  }

  TinyHfModel theirs_ = TinyHfModel::make_llama(false);
  TempFolder folder_;
  WorkerPool workers_{2};
  // Three windows: two of 6 tokens to predict, and one of 3.
  const std::vector<int32_t> stream_ = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
};

TEST_F(HeldOutTest, PredictsEveryTokenButTheFirstOnceInItsWindow) {
  double nats = 0;
  for (size_t i = 1; i < stream_.size(); ++i) {
    const size_t begin = (i - 1) / kWindow * kWindow;
    nats -= logprob_of(std::span(stream_).subspan(begin, i - begin + 1));
  }
  for (const bool computes_loss : {false, true}) {
    const auto model = load(computes_loss);
    HeldOutScorer scorer(*model, workers_);
    scorer.add(std::span(stream_).first(2));
    scorer.add(std::span(stream_).subspan(2, 13));
    scorer.add(std::span(stream_).last(1));
    const HeldOutScore score = scorer.finish();
    EXPECT_EQ(score.tokens, 15);
    EXPECT_EQ(score.windows, 3);
    EXPECT_NEAR(score.loss(), nats / 15, kTolerance);
    EXPECT_NEAR(score.perplexity(), std::exp(nats / 15), kTolerance * 20);
  }
}

TEST_F(HeldOutTest, WindowsMayEndWithTheStream) {
  const auto model = load();
  HeldOutScorer scorer(*model, workers_);
  scorer.add(std::span(stream_).first(13));
  EXPECT_EQ(scorer.finish().windows, 2);
  HeldOutScorer too_short(*model, workers_);
  too_short.add(std::span(stream_).first(1));
  EXPECT_THAT(message_of<DataError>([&] { too_short.finish(); }), HasSubstr("at least two"));
}

TEST_F(HeldOutTest, ScoresAContinuationAfterAsMuchContextAsFits) {
  const auto model = load();
  const std::span<const int32_t> all(stream_);
  const auto score = [&](size_t context, size_t count) {
    const auto continuation = all.subspan(context, count);
    return score_continuation(*model,
                              {.context = {all.begin(), all.begin() + std::ptrdiff_t(context)},
                               .continuation = {continuation.begin(), continuation.end()}},
                              workers_);
  };
  EXPECT_NEAR(score(3, 2).logprob, logprob_of(all.first(4)) + logprob_of(all.first(5)), kTolerance);
  EXPECT_EQ(score(3, 2).tokens, 2);
  // 6 tokens of input: 5 of the 9 before the first that is predicted.
  EXPECT_NEAR(score(9, 2).logprob, logprob_of(all.subspan(4, 6)) + logprob_of(all.subspan(4, 7)),
              kTolerance);
  EXPECT_NO_THROW(score(1, kWindow));
  EXPECT_THAT(message_of<DataError>([&] { score(1, kWindow + 1); }), HasSubstr("--context 7"));
}

TEST_F(HeldOutTest, GreedyIsTheLikeliestTokenEverywhere) {
  const auto model = load();
  std::vector<int32_t> context = {3, 1};
  std::vector<int32_t> likeliest;
  for (int i = 0; i < 3; ++i) {
    const std::vector<double> logits = theirs_.logits(context);
    likeliest.push_back(
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    context.push_back(likeliest.back());
  }
  EXPECT_TRUE(score_continuation(*model, {{3, 1}, likeliest}, workers_).is_greedy);
  likeliest[1] = (likeliest[1] + 1) % 11;
  EXPECT_FALSE(score_continuation(*model, {{3, 1}, likeliest}, workers_).is_greedy);
}

}  // namespace
}  // namespace braid
