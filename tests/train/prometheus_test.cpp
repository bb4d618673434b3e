#include "train/prometheus.h"

#include <gmock/gmock.h>

#include <limits>

namespace braid {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using ::testing::HasSubstr;
using ::testing::Not;

TEST(PrometheusText, HasATypeAndAValueForEachFigure) {
  const std::string text = prometheus_text(
      "a", {.step = 7, .loss = 2.5, .step_ms = 250, .consumed_tokens = 1024}, std::nullopt);
  EXPECT_THAT(text, HasSubstr("# HELP braid_loss Loss of that step, nats per token.\n"
                              "# TYPE braid_loss gauge\nbraid_loss{run=\"a\"} 2.5\n"));
  EXPECT_THAT(text, HasSubstr("\nbraid_step{run=\"a\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("\nbraid_step_seconds{run=\"a\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE braid_tokens_total counter\nbraid_tokens_total{run=\"a\"} "
                              "1024\n"));
  EXPECT_THAT(text, Not(HasSubstr("held_out")));
  EXPECT_EQ(text.back(), '\n');
}

TEST(PrometheusText, HasTheNewestHeldOutLoss) {
  EXPECT_THAT(prometheus_text("a", {}, EvalRecord{.step = 3, .loss = 4}),
              HasSubstr("\nbraid_held_out_loss{run=\"a\"} 4\n"));
}

TEST(PrometheusText, WritesWhatTheFormatReads) {
  const std::string text =
      prometheus_text("a \"b\"\\\n", {.loss = kNan, .grad_norm = kInfinity}, {});
  EXPECT_THAT(text, HasSubstr("braid_loss{run=\"a \\\"b\\\"\\\\\\n\"} NaN\n"));
  EXPECT_THAT(text, HasSubstr("} +Inf\n"));
}

}  // namespace
}  // namespace braid
