#include "evaluate/held_out.h"

#include <gmock/gmock.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "evaluate/tiny_model.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using HeldOut = TinyModel;

TEST_F(HeldOut, PredictsEveryTokenButTheFirstOnceInItsWindow) {
  double nats = 0;
  for (size_t i = 1; i < stream_.size(); ++i) {
    const size_t begin = (i - 1) / kWindow * kWindow;
    nats -= logprob_of(std::span(stream_).subspan(begin, i - begin + 1));
  }
  for (const bool computes_loss : {false, true}) {
    const auto model = load(computes_loss);
    DeviceScorer device(*model, workers_);
    HeldOutScorer scorer(device);
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

TEST_F(HeldOut, WindowsMayEndWithTheStream) {
  const auto model = load();
  DeviceScorer device(*model, workers_);
  HeldOutScorer scorer(device);
  scorer.add(std::span(stream_).first(13));
  EXPECT_EQ(scorer.finish().windows, 2);
  HeldOutScorer too_short(device);
  too_short.add(std::span(stream_).first(1));
  EXPECT_THAT(message_of<DataError>([&] { too_short.finish(); }), HasSubstr("at least two"));
}

}  // namespace
}  // namespace braid
