#include "runtime/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/validate.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

RunConfig small_config() {
  RunConfig config;
  config.model.layers = 2;
  config.model.width = 32;
  config.model.heads = 2;
  config.train.sequence = 32;
  config.parallel.ranks = 2;
  return resolved(config);
}

TEST(HostMemory, CountsAllRanksAndTheStateOnTheHost) {
  const RunPlan plan = plan_run(small_config(), 257);
  int64_t expected = 0;
  for (const ParameterUnit& unit : plan.layout.units) {
    expected += 12 * unit.num_elems;  // fp32 weights and two moments
  }
  expected += plan.ranks[0].memory.peak_bytes() + plan.ranks[1].memory.peak_bytes();
  EXPECT_EQ(training_bytes(plan), expected);
}

TEST(HostMemory, RefusesOneByteTooMany) {
  const RunConfig config = small_config();
  const RunPlan plan = plan_run(config, 257);
  const int64_t needed = training_bytes(plan);
  EXPECT_NO_THROW(check_fits_host(plan, config, needed));
  const std::string message =
      message_of<ConfigError>([&] { check_fits_host(plan, config, needed - 1); });
  for (const char* part : {"the run needs ", "2 ranks with ", "train.microbatch = 1",
                           "train.sequence = 32", "parallel.ranks = 2"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
}

TEST(HostMemory, ThereIsSome) {
  EXPECT_GT(host_memory_bytes(), int64_t{1} << 24);
}

}  // namespace
}  // namespace braid
