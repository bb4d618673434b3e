#include "memory/memory_classes.h"

#include <gtest/gtest.h>

#include <array>

namespace braid {
namespace {

TEST(MemoryClasses, AddUpToThePeak) {
  MemoryPlan plan;
  plan.persistent_bytes = 3 << 20;
  plan.persistent_by_role[BufferRole::kParam] = 1 << 20;
  plan.persistent_by_role[BufferRole::kOptimizerState] = 2 << 20;
  plan.step_bytes = 5 << 20;
  plan.programs.resize(2);
  plan.programs[0].arena_bytes = 1 << 20;
  plan.programs[0].peak_by_role[BufferRole::kGathered] = 1 << 20;
  plan.programs[1].arena_bytes = 5 << 20;
  plan.programs[1].max_live_bytes = 4 << 20;
  plan.programs[1].peak_by_role[BufferRole::kActivation] = 4 << 20;
  const std::vector<MemoryClass> classes = memory_classes(plan);
  ASSERT_EQ(classes.size(), 4u);
  const std::array<std::string_view, 4> titles = {"weights", "optimizer state", "activations",
                                                  "between buffers"};
  int64_t sum = 0;
  for (size_t i = 0; i < classes.size(); ++i) {
    EXPECT_EQ(classes[i].title, titles[i]);
    sum += classes[i].bytes();
  }
  EXPECT_EQ(sum, plan.peak_bytes());
  EXPECT_EQ(largest_step(plan), &plan.programs[1]);
}

TEST(MemoryClasses, OfNothingAreNone) {
  EXPECT_TRUE(memory_classes(MemoryPlan{}).empty());
  EXPECT_EQ(largest_step(MemoryPlan{}), nullptr);
}

}  // namespace
}  // namespace braid
