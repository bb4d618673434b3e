#include "passes/schedule/microbatch_pairs.h"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "passes/rearrange.h"
#include "plan/run_plan.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

RunPlan plan_of(int64_t microbatches, const std::string& shard = "none") {
  const std::vector<std::string> keys = {"model.layers=4",
                                         "model.width=1024",
                                         "model.heads=8",
                                         "model.vocabulary=4096",
                                         "train.sequence=1024",
                                         "train.microbatch=1",
                                         "train.dtype=bfloat16",
                                         "train.global_batch=" + std::to_string(2 * microbatches),
                                         "logging.run_folder=unused",
                                         "parallel.ranks=8",
                                         "parallel.tensor=4",
                                         "parallel.data=2",
                                         "parallel.shard=" + shard,
                                         "parallel.sequence_parallel=true",
                                         "memory.recompute=norms"};
  RunConfig config = parse_config("", "pairs", keys);
  validate(config);
  return plan_run(resolve_run(resolved(config), 0));
}

/// Places of the first and the last product of each job in an order.
struct Span {
  size_t first = SIZE_MAX;
  size_t last = 0;
};
using Jobs = std::map<std::pair<bool, int>, Span>;  // backward?, microbatch

Jobs jobs_in(const Program& program, const std::vector<TaskId>& order) {
  Jobs jobs;
  for (size_t i = 0; i < order.size(); ++i) {
    const Task& task = program.tasks[order[i].index()];
    const bool is_backward = task.label.phase == Phase::kDgrad;
    if (program.spec(task).op.starts_with("linear") &&
        (is_backward || task.label.phase == Phase::kForward)) {
      Span& span = jobs[{is_backward, task.label.microbatch}];
      span.first = std::min(span.first, i);
      span.last = i;
    }
  }
  return jobs;
}

bool are_woven(const Span& a, const Span& b) {
  return a.first < b.last && b.first < a.last;
}

TEST(MicrobatchPairs, WeavesJobsTwoByTwo) {
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  for (const char* const shard : {"none", "optimizer", "parameters"}) {
    SCOPED_TRACE(shard);
    const RunPlan plan = plan_of(4, shard);
    const Program& program = plan.ranks[0].programs[kTrainProgram];
    const std::vector<TaskId> order = microbatches_in_pairs(program, *model);
    rearrange(program, order, {});  // a permutation, and what conflicts keeps its order
    Jobs jobs = jobs_in(program, order);
    ASSERT_EQ(jobs.size(), 8U);
    const std::vector<std::pair<std::pair<bool, int>, std::pair<bool, int>>> pairs = {
        {{false, 0}, {false, 1}},
        {{true, 0}, {false, 2}},
        {{true, 1}, {false, 3}},
        {{true, 2}, {true, 3}}};
    for (size_t i = 0; i < pairs.size(); ++i) {
      // With sharded parameters only if that is faster beside gathers.
      EXPECT_TRUE(shard == std::string("parameters") ||
                  are_woven(jobs[pairs[i].first], jobs[pairs[i].second]))
          << i;
      for (size_t later = i + 1; later < pairs.size(); ++later) {
        EXPECT_LT(jobs[pairs[i].first].last, jobs[pairs[later].second].first);
        EXPECT_LT(jobs[pairs[i].second].last, jobs[pairs[later].first].first);
      }
    }
  }
}

TEST(MicrobatchPairs, IsOneOrderOnAllRanks) {
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  const RunPlan plan = plan_of(2);
  const std::vector<TaskId> order =
      microbatches_in_pairs(plan.ranks[0].programs[kTrainProgram], *model);
  ASSERT_THAT(order, Not(IsEmpty()));
  for (const RankPlan& rank : plan.ranks) {
    EXPECT_EQ(microbatches_in_pairs(rank.programs[kTrainProgram], *model), order);
  }
}

TEST(MicrobatchPairs, NeedsTwoMicrobatches) {
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  const RunPlan plan = plan_of(1);
  EXPECT_THAT(microbatches_in_pairs(plan.ranks[0].programs[kTrainProgram], *model), IsEmpty());
  EXPECT_THAT(microbatches_in_pairs(plan.ranks[0].programs[kEvalProgram], *model), IsEmpty());
}

}  // namespace
}  // namespace braid
