#include "trace/step_summary.h"

#include <gmock/gmock.h>

#include "trace/timelines.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

CommunicationSummary of(const StepSummary& step, GroupKind kind) {
  return step.by_group[static_cast<size_t>(kind)];
}

// rank 0: compute |0--40|      |60-----100|
//         dp             |30--------70|          data; nothing from 100 to 120
// rank 1: compute                      |80--120|
Timeline two_ranks() {
  Timeline timeline{"cpu", {make_rank(0), make_rank(1)}};
  timeline.ranks[0].tasks = {task_at(0, 0, 40), task_at(0, 60, 100),
                             communication_at(1, 30, 70, GroupKind::kData, 64)};
  timeline.ranks[1].tasks = {task_at(0, 80, 120)};
  return timeline;
}

TEST(StepSummary, IsTheMeanOfTheRanks) {
  const StepSummary step = summarize_step(two_ranks());
  EXPECT_EQ(step.step_ns, 120);
  EXPECT_EQ(step.compute_ns, (80 + 40) / 2);
  EXPECT_EQ(step.communication, (CommunicationSummary{20, 10}));
  EXPECT_EQ(of(step, GroupKind::kData), (CommunicationSummary{20, 10}));
  EXPECT_EQ(of(step, GroupKind::kTensor), CommunicationSummary{});
  EXPECT_EQ(step.by_phase[static_cast<size_t>(Phase::kComm)], step.communication);
  EXPECT_EQ(step.idle_ns, (20 + 80) / 2);
  EXPECT_EQ(step.copy_ns, 0);
  EXPECT_EQ(step.compute_ns + step.communication.exposed_ns + step.copy_ns + step.idle_ns,
            step.step_ns);
  EXPECT_THAT(step.ops, ElementsAre(OpSummary{"op", 2, 80}));
}

TEST(StepSummary, AMeanOfStepsCountsAnOpThatOneLacksAsNothing) {
  StepSummary a{.step_ns = 10};
  a.ops = {{"linear", 4, 8}};
  StepSummary b{.step_ns = 30};
  b.ops = {{"adamw", 2, 6}, {"linear", 4, 10}};
  const StepSummary steps[] = {a, b};
  const StepSummary mean = mean_step(steps);
  EXPECT_EQ(mean.step_ns, 20);
  EXPECT_THAT(mean.ops, ElementsAre(OpSummary{"adamw", 1, 3}, OpSummary{"linear", 4, 9}));
  EXPECT_EQ(mean_step({}), StepSummary{});
  EXPECT_EQ(summarize_step({}), StepSummary{});
}

}  // namespace
}  // namespace braid
