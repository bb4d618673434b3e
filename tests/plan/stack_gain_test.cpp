#include "plan/stack_gain.h"

#include <gmock/gmock.h>

#include "base/expect_error.h"
#include "config/validate.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

RunSpec small_run() {
  RunConfig config;
  config.model.layers = 2;
  config.model.width = 512;
  config.model.heads = 8;
  config.model.vocabulary = 1024;
  config.train.sequence = 1024;
  config.train.global_batch = 4;
  config.train.dtype = "bfloat16";
  config.parallel.ranks = 4;
  config.data.train = "unused";
  config.logging.run_folder = "unused";
  validate(config);
  return resolve_run(resolved(config), 0);
}

TEST(StackGain, ComparesOneLayoutUnderBoth) {
  const auto model = make_analytic_model(parse_cluster("h100x4"));
  const StackGain gain = stack_gain(small_run(), *model, "eager");
  EXPECT_EQ(gain.stack, "eager");
  EXPECT_GT(gain.theirs.middle_ns, gain.braids.middle_ns);
  EXPECT_LT(gain.braids.low_ns, gain.braids.middle_ns);
  const std::string text = describe_stack_gain(gain);
  EXPECT_THAT(text, StartsWith("stack    eager: "));
  EXPECT_THAT(text, HasSubstr("% shorter than under eager\n"));
  EXPECT_EQ(stack_gain(small_run(), *model, "braid").theirs.middle_ns, gain.braids.middle_ns);
  EXPECT_THAT(message_of<ConfigError>([&] { stack_gain(small_run(), *model, "fast"); }),
              HasSubstr("--stack \"fast\": unknown; use one of braid, eager"));
}

}  // namespace
}  // namespace braid
