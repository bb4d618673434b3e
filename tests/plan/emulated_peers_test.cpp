#include "plan/emulated_peers.h"

#include <gmock/gmock.h>

#include "base/expect_error.h"
#include "config/validate.h"
#include "ir/text.h"
#include "memory/verify_plan.h"
#include "ops/meets_others.h"
#include "plan/rank_programs.h"
#include "sim/analytic_model.h"
#include "support/emulated_layouts.h"

namespace braid {
namespace {

/// Eight ranks: two stages of two tensor ranks, twice.
RunConfig pipeline_run() {
  RunConfig config = small_planned_run();
  config.parallel.ranks = 8;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  validate(config);
  return resolved(config);
}

class EmulatedPeersTest : public ::testing::Test {
 protected:
  SimulatedRun simulated(bool starts_on_arrival) const {
    return {resolve_run(config_, 0),
            *model_,
            {.starts_on_arrival = starts_on_arrival},
            PlannedRanks::kEveryPlaceInFull};
  }

  const RunConfig config_ = pipeline_run();
  const std::unique_ptr<CostModel> model_ = make_analytic_model(parse_cluster("h200x8"));
};

int64_t sum_of_messages(const SimulatedRun& run, const EmulatedPeers& peers, int rank) {
  const Program& program = plan_of_rank(run.plan(), rank).programs[kTrainProgram];
  int64_t sum = 0;
  for (size_t task = 0; task < program.tasks.size(); ++task) {
    const std::string& op = program.spec(program.tasks[task]).op;
    sum += op == "recv" ? peers.task_ns[kTrainProgram][task] : 0;
  }
  return sum;
}

TEST_F(EmulatedPeersTest, TakeWhatTheSimulationTook) {
  const SimulatedRun run = simulated(true);
  const EmulatedPeers peers = emulated_peers(run, 0);
  const RankPlan& planned = plan_of_rank(run.plan(), 0);
  ASSERT_EQ(peers.task_ns.size(), planned.programs.size());
  const std::array rank{0};
  const Timeline timeline = run.timeline(rank);
  size_t communications = 0;
  for (const TimelineTask& task : timeline.ranks.front().tasks) {
    EXPECT_EQ(peers.task_ns[kTrainProgram][task.task], task.end_ns - task.start_ns);
    communications += task.communication ? 1 : 0;
  }
  EXPECT_GT(communications, 0u);
  EXPECT_EQ(peers.task_ns[kEvalProgram],
            std::vector<int64_t>(planned.programs[kEvalProgram].tasks.size(), 0));
}

// The second stage waits for the first microbatch.
TEST_F(EmulatedPeersTest, MayOrMayNotBeLate) {
  const SimulatedRun late = simulated(true);
  const SimulatedRun there = simulated(false);
  const int last = late.plan().ranks.back().programs[kTrainProgram].rank;
  const int64_t with_waits = sum_of_messages(late, emulated_peers(late, last), last);
  const int64_t moving = sum_of_messages(there, emulated_peers(there, last), last);
  EXPECT_GT(moving, 0);
  EXPECT_GT(with_waits, 2 * moving);
}

TEST_F(EmulatedPeersTest, HaveMemoryOfTheirOwnForWhatTheySendOnce) {
  const SimulatedRun run = simulated(true);
  const RankPlan& planned = plan_of_rank(run.plan(), 0);
  EmulatedPeers peers = emulated_peers(run, 0);
  EXPECT_EQ(memory_with(peers, planned).peak_bytes(), planned.memory.peak_bytes());
  peers.anew_bytes = 0;
  const MemoryPlan memory = memory_with(peers, planned);
  const Program& program = planned.programs[kTrainProgram];
  EXPECT_THAT(verify_plan(program, memory, kTrainProgram), ::testing::IsEmpty());
  size_t results = 0;
  for (const Task& task : program.tasks) {
    const OpSpec& spec = program.spec(task);
    const auto ranges = program.operands_of(task);
    for (size_t i = 0; i < ranges.size() && meets_others(program, task); ++i) {
      const size_t buffer = ranges[i].buffer.index();
      if (writes(spec.operands[i].access) && program.buffers[buffer].lifetime == Lifetime::kStep) {
        EXPECT_GE(memory.programs[kTrainProgram].offset_bytes[buffer],
                  planned.memory.programs[kTrainProgram].arena_bytes);
        ++results;
      }
    }
  }
  EXPECT_GT(results, 0u);
}

// What layers gather includes scales of FP8 data, which belong to the data of the first step.
TEST_F(EmulatedPeersTest, MayMakeWhatLayersGatherOnceAndSumsInEachStep) {
  EmulatedPeers peers;
  peers.anew_bytes = 4096;
  peers.anew_gathered_bytes = 64;
  const auto limit_of = [&](const std::string& task) {
    const Program program = parse_program(
        "program step rank=0 ranks=2 events=0\nstream s kind=compute priority=0\ngroup tensor "
        "kind=tensor ranks=0,1\nbuffer x f32 [8] activation step device\nbuffer i i32 [8] "
        "activation step device\nbuffer y f32 [16] activation step device\nbuffer j i32 [16] "
        "activation step device\n" +
        task);
    return peers.anew_bytes_of(program, program.tasks[0]);
  };
  EXPECT_EQ(limit_of("all_gather(x -> y) {group=0} s comm mb=0 layer=0\n"), 64);
  EXPECT_EQ(limit_of("all_gather(x -> y) {group=0} s comm mb=0\n"), 4096);
  EXPECT_EQ(limit_of("all_gather(i -> j) {group=0} s comm mb=0 layer=0\n"), 4096);
  EXPECT_EQ(limit_of("all_reduce(-> rw x) {group=0} s comm mb=0 layer=0\n"), 4096);
}

TEST_F(EmulatedPeersTest, AreOfRanksThatAreSimulated) {
  const SimulatedRun run = simulated(true);
  EXPECT_THAT(message_of<ConfigError>([&] { emulated_peers(run, 9); }),
              ::testing::HasSubstr("--rank 9: the run has 8 ranks; take one of 0, "));
  const Mesh& mesh = run.spec().mesh;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    if (mesh.position(rank).data != 0) {
      EXPECT_THAT(message_of<ConfigError>([&] { emulated_peers(run, rank); }),
                  ::testing::HasSubstr("it does what a rank with another part of the data does"));
    } else {
      EXPECT_NO_THROW(emulated_peers(run, rank));
    }
  }
}

}  // namespace
}  // namespace braid
