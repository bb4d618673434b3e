#include "evaluate/token_scores.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "evaluate/tiny_model.h"

namespace braid {
namespace {

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

using ScoreTokens = TinyModel;

TEST_F(ScoreTokens, ScoresEachTokenFromTheFirstOneOn) {
  const auto model = load();
  const auto tokens = std::span(stream_).first(5);
  for (const size_t first : {1, 3}) {
    const std::vector<TokenScore> scores = score_tokens(*model, tokens, first, workers_);
    ASSERT_EQ(scores.size(), tokens.size() - first);
    for (size_t i = first; i < tokens.size(); ++i) {
      EXPECT_NEAR(scores[i - first].logprob, logprob_of(tokens.first(i + 1)), kTolerance);
    }
  }
  EXPECT_THROW(score_tokens(*model, tokens, 0, workers_), InternalError);
  EXPECT_THROW(score_tokens(*model, tokens, 5, workers_), InternalError);
}

}  // namespace
}  // namespace braid
