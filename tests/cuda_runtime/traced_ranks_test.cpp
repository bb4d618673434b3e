// Traced steps of ranks on several GPUs of this process: every task of every rank is timed, on one
// axis of time. Prints what it measures, so that one log tells what a machine does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "backends/cuda/make_executor.h"
#include "plan/run_spec.h"
#include "support/engine_runs.h"
#include "support/time_limit.h"
#include "trace/breakdown.h"
#include "trace/explain_exposed.h"
#include "trace/exposed.h"
#include "trace/meetings.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct TracedLayout {
  const char* name;
  ParallelConfig parallel;
  bool eager = false;
};

void PrintTo(const TracedLayout& layout, std::ostream* out) {
  *out << layout.name;
}

RunConfig config_of(const TracedLayout& layout) {
  RunConfig config = small_config();
  config.model.layers = 4;
  config.model.width = 1024;
  config.model.heads = 8;
  config.model.kv_heads = 8;
  config.train.sequence = 512;
  config.train.dtype = "bfloat16";
  config.train.microbatch = 2;
  config.train.global_batch = 8;
  config.parallel = layout.parallel;
  config.runtime.device = "cuda";
  return resolved(config);
}

class TracedRanks : public ::testing::TestWithParam<TracedLayout> {
 protected:
  void SetUp() override {
    const auto num_gpus = static_cast<int64_t>(gpus_.usable.size());
    if (num_gpus < GetParam().parallel.ranks) {
      GTEST_SKIP() << "needs " << GetParam().parallel.ranks << " GPUs, and there are " << num_gpus;
    }
    if (!gpus_.why_alone.empty()) {
      GTEST_SKIP() << gpus_.why_alone;
    }
    if (!describe_cuda_tracing().starts_with("CUPTI")) {
      GTEST_SKIP() << describe_cuda_tracing();
    }
  }

  std::unique_ptr<Engine> make_engine() const {
    const RunConfig config = config_of(GetParam());
    auto engine = std::make_unique<Engine>(
        plan_run(resolve_run(config, 50)),
        EngineOptions{.device = choose_device(config, gpus_), .eager = GetParam().eager});
    engine->write_state(initial_state(engine->plan().layout, engine->plan().run.model, 5));
    return engine;
  }

  /// Losses of four steps, of which those in `traced` are traced.
  std::vector<double> train(Engine& engine, const std::vector<int64_t>& traced) const {
    const RunConfig config = config_of(GetParam());
    const NoisySequences source(config.train.sequence);
    BatchLoader loader(source, {.shape = {.num_ranks = config.parallel.data,
                                          .num_microbatches = num_microbatches(config),
                                          .microbatch = microbatch_sequences(config)}});
    std::vector<double> losses;
    for (int64_t step = 1; step <= 4; ++step) {
      engine.set_tracing(std::ranges::find(traced, step) != traced.end());
      losses.push_back(engine.train_step(*loader.next(), config.optimizer, 1e-3, step).loss);
    }
    return losses;
  }

 private:
  const FoundGpus gpus_ = find_gpus();
  const TimeLimit limit_{240};
};

/// Which of a rank's tasks have a kernel.
std::vector<bool> tasks_with_kernels(const RankTimeline& rank) {
  std::vector<bool> has_kernel(rank.tasks.size());
  for (const TimelineKernel& kernel : rank.kernels) {
    EXPECT_NE(kernel.task, TimelineKernel::kNoTask)
        << "rank " << rank.rank << ": " << rank.kernel_names[kernel.name];
    if (kernel.task != TimelineKernel::kNoTask) {
      has_kernel[kernel.task] = true;
    }
  }
  return has_kernel;
}

void print(const Timeline& timeline) {
  std::printf("%s\n", describe_step(timeline).c_str());
  for (const RankTimes& rank : analyze_timeline(timeline)) {
    std::printf(
        "rank %d: step %.1f us, compute %.1f, communication %.1f, exposed %.1f of which %.1f are "
        "waits, copies %.1f, idle %.1f\n",
        rank.rank, static_cast<double>(rank.step_ns) * 1e-3,
        static_cast<double>(rank.compute_ns) * 1e-3,
        static_cast<double>(rank.communication.total_ns) * 1e-3,
        static_cast<double>(rank.communication.exposed_ns) * 1e-3,
        static_cast<double>(rank.communication.exposed_wait_ns) * 1e-3,
        static_cast<double>(rank.copy_ns) * 1e-3, static_cast<double>(rank.bubble_ns) * 1e-3);
  }
  for (const RankTimeline& rank : timeline.ranks) {
    std::printf("rank %d remark: %s\n", rank.rank, rank.remark.c_str());
  }
  for (const ExplainedCommunication& one : explain_exposed(timeline)) {
    std::printf("%s\n", describe_exposed(one).c_str());
  }
}

TEST_P(TracedRanks, EveryTaskOfEveryRankIsTimed) {
  const auto engine = make_engine();
  train(*engine, {3, 4});
  const Timeline timeline = engine->timeline();
  print(timeline);
  EXPECT_EQ(timeline.source, "cuda, CUPTI");
  ASSERT_EQ(timeline.ranks.size(), static_cast<size_t>(GetParam().parallel.ranks));
  for (size_t i = 0; i < timeline.ranks.size(); ++i) {
    const RankTimeline& rank = timeline.ranks[i];
    EXPECT_EQ(rank.rank, static_cast<int>(i));
    EXPECT_EQ(rank.tasks.size(), engine->plan().ranks[i].programs[kTrainProgram].tasks.size());
    EXPECT_THAT(rank.remark, Not(HasSubstr("lost")));
    EXPECT_THAT(rank.remark, Not(HasSubstr("no record of")));
    EXPECT_THAT(rank.remark, Not(HasSubstr("contradict")));
    const std::vector<bool> has_kernel = tasks_with_kernels(rank);
    for (size_t task = 0; task < rank.tasks.size(); ++task) {
      const bool meets_others = rank.tasks[task].sequence != TimelineTask::kNoSequence;
      EXPECT_TRUE(!meets_others || has_kernel[task]) << rank.names[rank.tasks[task].name];
    }
  }
}

TEST_P(TracedRanks, CommunicationOverlapsOnTheAxisOfAllItsRanks) {
  const auto engine = make_engine();
  train(*engine, {3});
  const Timeline timeline = engine->timeline();
  int64_t num_meetings = 0;
  for_each_meeting(timeline, [&](std::span<const CallAt> calls) {
    ++num_meetings;
    const RankTimeline& first = timeline.ranks[calls.front().rank];
    const TimelineTask& task = first.tasks[calls.front().task];
    EXPECT_EQ(calls.size(), first.sequences[task.sequence].ranks.size());
    if (first.sequences[task.sequence].messages) {
      return;  // a small message may have ended when its receiver comes
    }
    int64_t last_start_ns = 0;
    int64_t first_end_ns = INT64_MAX;
    for (const CallAt& call : calls) {
      const TimelineTask& part = timeline.ranks[call.rank].tasks[call.task];
      last_start_ns = std::max(last_start_ns, part.start_ns);
      first_end_ns = std::min(first_end_ns, part.end_ns);
    }
    EXPECT_LE(last_start_ns, first_end_ns) << first.names[task.name] << ", call " << task.call
                                           << " of " << first.sequences[task.sequence].name;
  });
  EXPECT_GT(num_meetings, 0);
}

TEST_P(TracedRanks, PartsOfTheStepAddUp) {
  const auto engine = make_engine();
  train(*engine, {3});
  for (const RankTimes& rank : analyze_timeline(engine->timeline())) {
    const CommunicationTime& all = rank.communication;
    EXPECT_GT(all.total_ns, 0);
    EXPECT_EQ(all.exposed_ns + all.hidden_ns(), all.total_ns);
    EXPECT_LE(all.exposed_wait_ns, all.exposed_ns);
    EXPECT_EQ(rank.compute_ns + all.exposed_ns + rank.copy_ns + rank.bubble_ns, rank.step_ns);
    EXPECT_GT(rank.compute_ns, 0);
  }
}

TEST_P(TracedRanks, ATracedRunHasTheLossesOfOneThatIsNotTraced) {
  const auto plain = make_engine();
  const auto traced = make_engine();
  EXPECT_EQ(train(*traced, {1, 3}), train(*plain, {}));
}

ParallelConfig parallel(int64_t ranks, const std::string& shard, int64_t tensor = 1,
                        int64_t pipeline = 1) {
  ParallelConfig parallel{.ranks = ranks, .tensor = tensor, .pipeline = pipeline, .shard = shard};
  parallel.sequence_parallel = tensor > 1;
  return parallel;
}

INSTANTIATE_TEST_SUITE_P(
    , TracedRanks,
    ::testing::Values(TracedLayout{"optimizer2", parallel(2, "optimizer")},
                      TracedLayout{"parameters2", parallel(2, "parameters")},
                      TracedLayout{"tensor2", parallel(2, "none", 2)},
                      TracedLayout{"pipeline2", parallel(2, "none", 1, 2)},
                      TracedLayout{"parameters2_eager", parallel(2, "parameters"), true},
                      TracedLayout{"tensor2_pipeline2", parallel(4, "none", 2, 2)}),
    [](const auto& layout) { return std::string(layout.param.name); });

}  // namespace
}  // namespace braid
