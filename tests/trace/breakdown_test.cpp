#include "trace/breakdown.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "base/errors.h"
#include "base/expect_error.h"
#include "trace/timelines.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kNoTask = TimelineKernel::kNoTask;

TimelineTask task_of_op(uint32_t op, int64_t start_ns, int64_t end_ns, uint32_t stream = 0) {
  TimelineTask task = task_at(stream, start_ns, end_ns);
  task.op = op;
  return task;
}

StepBreakdown break_down_one(RankTimeline rank) {
  Timeline timeline{"cuda", {}};
  timeline.ranks.push_back(std::move(rank));
  return break_down(timeline).at(0);
}

TEST(Breakdown, SumsTheTasksOfEachOp) {
  RankTimeline rank = make_rank(3);
  rank.ops = {{"linear", 4000, 100}, {"rmsnorm", 10, 3000}, {"linear", 1000, 50}};
  rank.device = {.name = "a device", .flops_per_s = 1e11, .bytes_per_s = 1e11};  // 100 per ns
  rank.tasks = {task_of_op(0, 0, 50), task_of_op(1, 50, 90), task_of_op(2, 90, 105),
                task_of_op(0, 105, 160)};
  StepBreakdown result = break_down_one(rank);
  EXPECT_EQ(result.rank, 3);
  ASSERT_EQ(result.ops.size(), 2u);
  OpTime& linear = result.ops[0];
  EXPECT_DOUBLE_EQ(std::exchange(linear.least_ns, 0), 40 + 10 + 40);
  EXPECT_EQ(linear, (OpTime{"linear", "matrix products", 3, 120, 9000, 250, 0}));
  OpTime& norm = result.ops[1];
  EXPECT_DOUBLE_EQ(std::exchange(norm.least_ns, 0), 30);  // its memory traffic
  EXPECT_EQ(norm, (OpTime{"rmsnorm", "norms", 1, 40, 10, 3000, 0}));
  EXPECT_EQ(result.idle_ns, 0);
  EXPECT_TRUE(result.longest.empty());
}

TEST(Breakdown, CountsTheTimeOfKernelsWhereTheyAreKnown) {
  RankTimeline rank = make_rank(0);
  rank.ops = {{"linear", 0, 0}, {"add", 0, 0}};
  rank.tasks = {task_of_op(0, 0, 100), task_of_op(1, 120, 120)};
  // Two kernels with a pause, one that overlaps the second, one inside it, and one of no task.
  rank.kernels = {
      {0, 0, 0, 30}, {0, 0, 50, 80}, {0, 0, 60, 70}, {0, 0, 75, 100}, {kNoTask, 0, 100, 107}};
  const StepBreakdown result = break_down_one(rank);
  EXPECT_EQ(result.ops[0].busy_ns, 30 + 50);
  EXPECT_EQ(result.ops[1].op, "add");
  EXPECT_EQ(result.ops[1].busy_ns, 0);
  EXPECT_EQ(result.no_task_ns, 7);
  EXPECT_THAT(result.longest, ElementsAre(Gap{30, 50, 0, 0}, Gap{107, 120, kNoTask, kNoTask}));
  EXPECT_EQ(result.idle_ns, 33);
}

TEST(Breakdown, GapsAreWhereNoStreamRunsAnything) {
  RankTimeline rank = make_rank(0);
  rank.tasks = {task_of_op(0, 10, 30), task_of_op(0, 60, 70), task_of_op(0, 20, 50, 1),
                task_of_op(0, 55, 58, 1)};
  const StepBreakdown result = break_down_one(rank);
  EXPECT_THAT(result.longest,
              ElementsAre(Gap{0, 10, kNoTask, 0}, Gap{50, 55, 2, 3}, Gap{58, 60, 3, 1}));
  EXPECT_EQ(result.num_gaps, 3);
  EXPECT_EQ(result.idle_ns, 17);
}

TEST(Breakdown, EveryRankIsIdleUntilTheLastOneEnds) {
  Timeline timeline{"cuda", {make_rank(0), make_rank(1)}};
  timeline.ranks[0].tasks = {task_at(0, 0, 100)};
  timeline.ranks[1].tasks = {task_at(0, 0, 40)};
  const auto ranks = break_down(timeline);
  EXPECT_EQ(ranks[0].idle_ns, 0);
  EXPECT_THAT(ranks[1].longest, ElementsAre(Gap{40, 100, 0, kNoTask}));
}

TEST(Breakdown, ListsTheLongestGapsOnly) {
  RankTimeline rank = make_rank(0);
  int64_t at = 0;
  for (int i = 1; i <= 20; ++i) {
    rank.tasks.push_back(task_at(0, at + i, at + i + 5));
    at += i + 5;
  }
  const StepBreakdown result = break_down_one(rank);
  EXPECT_EQ(result.num_gaps, 20);
  ASSERT_EQ(result.longest.size(), StepBreakdown::kMaxGaps);
  EXPECT_EQ(result.longest.front().duration_ns(), 20);
  EXPECT_EQ(result.longest.back().duration_ns(), 13);
}

TEST(Breakdown, TimelinesWithoutCostsGoByNames) {
  RankTimeline rank = make_rank(0);
  rank.names = {"linear qkv", "all_reduce grads"};
  rank.tasks = {task_at(0, 0, 5), communication_at(1, 5, 6, GroupKind::kData, 64)};
  rank.tasks[1].name = 1;
  const StepBreakdown result = break_down_one(rank);
  ASSERT_EQ(result.ops.size(), 2u);
  EXPECT_EQ(result.ops[0].op, "linear");
  EXPECT_EQ(result.ops[1].op, "all_reduce");
  EXPECT_EQ(result.ops[1].kind, "communication");
  EXPECT_EQ(result.ops[0].least_ns, 0);
}

// Against a bit per nanosecond.
TEST(Breakdown, AgreesWithCountingNanoseconds) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    RankTimeline rank = make_rank(0);
    rank.ops = {{"a", 0, 0}, {"b", 0, 0}};
    std::vector<std::vector<bool>> of_task;
    std::vector<bool> any(400);
    for (uint32_t i = 0; i < 6; ++i) {
      rank.tasks.push_back(task_of_op(i % 2, 0, 400));
      of_task.emplace_back(400);
    }
    for (int i = 0; i < 12; ++i) {
      const uint32_t task = random() % 6;
      const int64_t start = random() % 300;
      const int64_t end = start + random() % 60;
      rank.kernels.push_back({task, 0, start, end});
      std::fill(of_task[task].begin() + start, of_task[task].begin() + end, true);
      std::fill(any.begin() + start, any.begin() + end, true);
    }
    std::sort(rank.kernels.begin(), rank.kernels.end(),
              [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; });
    const StepBreakdown result = break_down_one(rank);
    EXPECT_EQ(result.idle_ns, std::count(any.begin(), any.end(), false));
    for (const OpTime& op : result.ops) {
      int64_t expected = 0;
      for (size_t i = op.op == "a" ? 0 : 1; i < of_task.size(); i += 2) {
        expected += std::count(of_task[i].begin(), of_task[i].end(), true);
      }
      EXPECT_EQ(op.busy_ns, expected);
    }
  }
}

TEST(Breakdown, RefusesIndicesThatLeadNowhere) {
  RankTimeline rank = make_rank(0);
  rank.tasks = {task_at(0, 0, 1)};
  rank.kernels = {{1, 0, 0, 1}};
  EXPECT_THAT(message_of<InternalError>([&] { break_down_one(rank); }),
              ::testing::HasSubstr("a kernel of task 1 of 1"));
  rank.kernels.clear();
  rank.ops = {{"add", 0, 0}};
  rank.tasks[0].op = 1;
  EXPECT_THAT(message_of<InternalError>([&] { break_down_one(rank); }),
              ::testing::HasSubstr("op 1 of 1"));
}

TEST(Breakdown, SaysAStepInOneLine) {
  Timeline timeline{"cuda, CUPTI", {make_rank(0), make_rank(1)}};
  for (RankTimeline& rank : timeline.ranks) {
    rank.step = 7;
    rank.ops = {{"rmsnorm", 0, 0}, {"linear", 0, 0}};
    rank.tasks = {task_of_op(0, 0, 500'000), task_of_op(1, 500'000, 1'750'000)};
  }
  timeline.ranks[1].tasks[1].end_ns = 2'000'000;
  EXPECT_EQ(describe_step(timeline),
            "step 7, cuda, CUPTI, 2.00 ms: matrix products 68.8%, norms 25.0%, idle 6.2%");
  timeline.ranks[0].remark = timeline.ranks[1].remark = "why";
  EXPECT_THAT(describe_step(timeline), ::testing::EndsWith("idle 6.2%; why"));
  EXPECT_EQ(describe_step({"cpu", {make_rank(0)}}), "step 0, cpu, 0.00 ms");
  EXPECT_EQ(describe_step({}), "no step");
}

TEST(OpKind, IsSaidForEveryKindOfOp) {
  EXPECT_EQ(op_kind("linear_wgrad"), "matrix products");
  EXPECT_EQ(op_kind("attention_backward"), "attention");
  EXPECT_EQ(op_kind("add_rmsnorm"), "norms");
  EXPECT_EQ(op_kind("squared_norm"), "optimizer");
  EXPECT_EQ(op_kind("position_embedding_wgrad"), "embedding and loss");
  EXPECT_EQ(op_kind("swiglu"), "elementwise");
  EXPECT_EQ(op_kind("fill"), "copies");
  EXPECT_EQ(op_kind("what nobody knows"), "elementwise");
}

}  // namespace
}  // namespace braid
