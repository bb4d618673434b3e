#include "evaluate/continuation.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "base/errors.h"
#include "base/expect_error.h"
#include "evaluate/tiny_model.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ScoreContinuation : public TinyModel {
 protected:
  ContinuationScore score_of(CausalModel& model, const ContinuationTokens& tokens) {
    DeviceScorer scorer(model, workers_);
    return score_continuations(scorer, std::span(&tokens, 1)).front();
  }
};

/// Pairs of letters are a token of their own.
class PairTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool is_pair = i + 1 < text.size() && text[i] == ' ' && text[i + 1] != ' ';
      tokens.push_back(is_pair ? 1000 + text[i + 1] : text[i]);
      i += is_pair ? 1 : 0;
    }
    return tokens;
  }
  std::string decode(std::span<const int32_t>) const override { return {}; }
  int32_t vocabulary_size() const override { return 2000; }
  std::optional<int32_t> eod_id() const override { return eod; }
  TextFrame frame() const override { return {.before = before, .after = {}}; }
  const std::string& name() const override { return name_; }
  std::string describe() const override { return name_; }

  std::vector<int32_t> before;
  std::optional<int32_t> eod = 5;

 private:
  std::string name_ = "pairs";
};

TEST(EncodeContinuation, SplitsTheTokensOfBothTextsTogether) {
  PairTokenizer tokenizer;
  ContinuationTokens tokens = encode_continuation(tokenizer, "ab", " cd");
  EXPECT_THAT(tokens.context, ElementsAre('a', 'b'));
  EXPECT_THAT(tokens.continuation, ElementsAre(1000 + 'c', 'd'));
  // The blank goes to the continuation, with which it is one token.
  tokens = encode_continuation(tokenizer, "ab ", "cd");
  EXPECT_THAT(tokens.context, ElementsAre('a', 'b'));
  EXPECT_THAT(tokens.continuation, ElementsAre(1000 + 'c', 'd'));
  tokens = encode_continuation(tokenizer, "", "c");
  EXPECT_THAT(tokens.context, ElementsAre(5));
  EXPECT_THAT(tokens.continuation, ElementsAre('c'));
  tokenizer.before = {7};
  EXPECT_THAT(encode_continuation(tokenizer, "", "c").context, ElementsAre(7));
  EXPECT_THAT(encode_continuation(tokenizer, "a", "c").context, ElementsAre(7, 'a'));
}

TEST(EncodeContinuation, RefusesWhatHasNoTokenToScore) {
  PairTokenizer tokenizer;
  EXPECT_THAT(message_of<DataError>([&] { encode_continuation(tokenizer, "ab", ""); }),
              HasSubstr("no token of its own"));
  tokenizer.eod = std::nullopt;
  EXPECT_THAT(message_of<DataError>([&] { encode_continuation(tokenizer, "", "c"); }),
              HasSubstr("no end-of-document id"));
}

TEST_F(ScoreContinuation, ScoresAContinuationAfterAsMuchContextAsFits) {
  const auto model = load();
  const std::span<const int32_t> all(stream_);
  const auto score = [&](size_t context, size_t count) {
    const auto continuation = all.subspan(context, count);
    return score_of(*model, {.context = {all.begin(), all.begin() + std::ptrdiff_t(context)},
                             .continuation = {continuation.begin(), continuation.end()}});
  };
  EXPECT_NEAR(score(3, 2).logprob, logprob_of(all.first(4)) + logprob_of(all.first(5)), kTolerance);
  EXPECT_EQ(score(3, 2).tokens, 2);
  // 6 tokens of input: 5 of the 9 before the first that is predicted.
  EXPECT_NEAR(score(9, 2).logprob, logprob_of(all.subspan(4, 6)) + logprob_of(all.subspan(4, 7)),
              kTolerance);
  EXPECT_NO_THROW(score(1, kWindow));
  EXPECT_THAT(message_of<DataError>([&] { score(1, kWindow + 1); }), HasSubstr("--context 7"));
}

TEST_F(ScoreContinuation, GreedyIsTheLikeliestTokenEverywhere) {
  const auto model = load();
  std::vector<int32_t> context = {3, 1};
  std::vector<int32_t> likeliest;
  for (int i = 0; i < 3; ++i) {
    const std::vector<double> logits = theirs_.logits(context);
    likeliest.push_back(
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    context.push_back(likeliest.back());
  }
  EXPECT_EQ(score_of(*model, {{3, 1}, likeliest}).is_greedy, true);
  likeliest[1] = (likeliest[1] + 1) % 11;
  EXPECT_EQ(score_of(*model, {{3, 1}, likeliest}).is_greedy, false);
}

}  // namespace
}  // namespace braid
