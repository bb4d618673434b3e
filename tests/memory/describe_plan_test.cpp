#include <gtest/gtest.h>

#include "memory/memory_plan.h"

namespace braid {
namespace {

TEST(DescribePlan, IsATableByClassThatEndsWithThePeak) {
  MemoryPlan plan;
  plan.persistent_bytes = 3 << 20;
  plan.persistent_by_role[BufferRole::kParam] = 1 << 20;
  plan.persistent_by_role[BufferRole::kOptimizerState] = 2 << 20;
  plan.step_bytes = 5 << 20;
  plan.programs.resize(2);
  plan.programs[0].arena_bytes = 1 << 20;
  plan.programs[1].arena_bytes = 5 << 20;
  plan.programs[1].max_live_bytes = 4 << 20;
  plan.programs[1].peak_by_role[BufferRole::kActivation] = 3 << 20;
  plan.programs[1].peak_by_role[BufferRole::kParam] = 1 << 20;
  EXPECT_EQ(describe_plan(plan),
            "memory                persistent   step peak    together\n"
            "weights                 1.00 MiB    1.00 MiB    2.00 MiB\n"
            "optimizer state         2.00 MiB           -    2.00 MiB\n"
            "activations                    -    3.00 MiB    3.00 MiB\n"
            "between buffers                -    1.00 MiB    1.00 MiB\n"
            "peak 8.00 MiB = 3.00 MiB persistent + 5.00 MiB in a step (1.250 x the bytes live at "
            "once)\n");
}

TEST(DescribePlan, HasALineForTheHostIfItIsUsed) {
  MemoryPlan plan;
  plan.host_bytes = 3 << 20;
  EXPECT_EQ(describe_plan(plan),
            "memory                persistent   step peak    together\npeak 0 B = 0 B persistent + "
            "0 B in a step (1.000 x the bytes live at once)\nhost 3.00 MiB in a step, for "
            "activations placed there\n");
}

TEST(DescribePlan, SaysSoWhenNothingIsNeeded) {
  EXPECT_EQ(describe_plan(MemoryPlan{}),
            "memory                persistent   step peak    together\n"
            "peak 0 B = 0 B persistent + 0 B in a step (1.000 x the bytes live at once)\n");
}

}  // namespace
}  // namespace braid
