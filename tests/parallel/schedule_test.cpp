#include "parallel/schedule.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace braid {
namespace {

TEST(Schedule, SingleStageRunsEachMicrobatchToItsEnd) {
  EXPECT_EQ(to_string(single_stage_schedule(3)), "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0");
}

TEST(Schedule, NeedsAMicrobatch) {
  EXPECT_THROW(single_stage_schedule(0), InternalError);
}

}  // namespace
}  // namespace braid
