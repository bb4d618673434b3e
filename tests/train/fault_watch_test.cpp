// Memory fails in the middle of a run, which goes back to its last checkpoint and runs the steps
// since then again: a transient fault leaves no trace in the weights, a persistent one ends the
// run.
#include "train/fault_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/expect_error.h"
#include "support/damaged_runs.h"
#include "support/deferred_executor.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

class FaultWatches : public DamagedRuns {
 protected:
  /// The run, and one that nothing happened to, have the same files and measurements.
  void expect_healed(int64_t last_step) {
    train_whole();
    expect_same_files("run", "whole", last_step, config_.parallel.ranks);
    EXPECT_EQ(records_of(metrics("run")), records_of(metrics("whole")));
    EXPECT_EQ(metrics("whole").reruns.size(), 0u);
  }
  /// A model that learns nothing, and a limit below the noise of its losses.
  void listen_to_noise() {
    config_.optimizer.learning_rate = 1e-6;
    config_.runtime.rerun_spike = 0.01;
  }
  std::string message(size_t index) const { return metrics("run").reruns.at(index).message; }
};

TEST_F(FaultWatches, ATransientFaultOfACopyIsUndone) {
  config_.eval.interval = 5;
  config_.logging.trace_steps = {5};
  train(config_, damaged({.rank = 1, .after_steps = {5}}));
  const std::string line =
      "rank 1 holds other bits of head.output (weights) than rank 0, rank 2 after step 6 (all "
      "copies were equal after step 4); ";
  EXPECT_EQ(message(0), line + "back to " + newest() + " to run steps 5 to 6 again");
  EXPECT_EQ(message(1), line + "steps 5 to 6 ran again from " + newest() +
                            ", and all copies are equal: the fault was transient and is undone");
  EXPECT_THAT(output_, AllOf(HasSubstr("rerun    " + message(0) + "\n"),
                             HasSubstr("rerun    " + message(1) + "\n")));
  EXPECT_EQ(metrics("run").reruns.size(), 2u);
  EXPECT_EQ(metrics("run").reruns[1].step, 6);
  EXPECT_EQ(metrics("run").reruns[1].from_step, 4);
  expect_healed(12);
}

TEST_F(FaultWatches, WithoutACheckpointTheRunGoesBackToItsInitialWeights) {
  config_.checkpoint.interval = 0;
  config_.runtime.check_replicas = 3;
  config_.eval.interval = 6;
  train(config_, damaged({.rank = 2, .after_steps = {2}}));
  EXPECT_THAT(message(1), HasSubstr("; steps 1 to 3 ran again from the initial weights, and all"));
  EXPECT_EQ(metrics("run").reruns.size(), 2u);
  expect_healed(12);
}

TEST_F(FaultWatches, AFaultThatComesAgainEndsTheRun) {
  EXPECT_THAT(message_of<DeviceError>([&] {
                train(config_, damaged({.rank = 1, .after_steps = {5}, .repeats = true}));
              }),
              AllOf(ContainsRegex(
                        "^rank 1 holds other bits of head.output .* after step 6 .*; the fault is "
                        "persistent: the steps since .*step_00000004 ran again because rank 1 "
                        "holds"),
                    HasSubstr("resumes from " + newest())));
  EXPECT_EQ(read_text_file(path("run/checkpoints/latest"), 100), "step_00000004\n");
}

TEST_F(FaultWatches, ARankIsForgivenOnce) {
  EXPECT_THAT(
      message_of<DeviceError>([&] {
        train(config_, damaged({.rank = 1, .after_steps = {5, 9}}));
      }),
      ContainsRegex("^rank 1 .* after step 10 .*; no step runs again: a copy of rank 1 differed "
                    "before, after step 6: its fault persists; .* resumes from .*step_00000008"));
}

TEST_F(FaultWatches, TheRunDoesNotGoBackFurtherThanAllowed) {
  config_.checkpoint.interval = 0;
  config_.runtime.check_replicas = 6;
  config_.runtime.rerun_steps = 5;
  EXPECT_THAT(
      message_of<DeviceError>([&] { train(config_, damaged({.rank = 1, .after_steps = {4}})); }),
      ContainsRegex("^rank 1 .* after step 6: .*; no step runs again: 6 steps since the "
                    "initial weights, more than runtime.rerun_steps = 5; start the run"));
}

// Of two copies, nobody knows which one is wrong, and it does not matter.
TEST_F(FaultWatches, StagesAndShardsGoBackTogether) {
  ParallelConfig staged{.ranks = 4, .pipeline = 2};
  staged.schedule = "1f1b";
  for (const ParallelConfig& parallel :
       {staged, ParallelConfig{.ranks = 2, .shard = "optimizer"}}) {
    config_.parallel = parallel;
    config_.train.global_batch = 8;
    config_.overlap.mode = "off";  // weights are gathered after the step, so both have copies
    const auto last = static_cast<size_t>(parallel.ranks - 1);
    train(config_, damaged({.rank = last, .after_steps = {6}}));
    ASSERT_EQ(metrics("run").reruns.size(), 2u) << output_;
    EXPECT_THAT(message(1), ContainsRegex("rank [02], rank [13] hold different bits of head.output "
                                          ".* after step 6 .* is undone"));
    expect_healed(12);
    std::filesystem::remove_all(path("run"));
    std::filesystem::remove_all(path("whole"));
  }
}

TEST_F(FaultWatches, ProcessesGoBackTogether) {
  EXPECT_THAT(errors_of_processes({.rank = 1, .after_steps = {5}}), Each(""));
  EXPECT_THAT(output_,
              ContainsRegex("rerun    rank 1 .*; steps 5 to 6 ran again from .* is undone"));
  expect_healed(12);
}

// Each element is on one rank only: only bits of losses can tell.
TEST_F(FaultWatches, ASpikeWithOtherBitsIsAFaultOfADevice) {
  ParallelConfig staged{.ranks = 2, .pipeline = 2};
  staged.schedule = "1f1b";
  for (const ParallelConfig& parallel : {staged, ParallelConfig{.ranks = 2, .tensor = 2}}) {
    config_.parallel = parallel;
    config_.train.steps = 24;
    config_.checkpoint.interval = 8;
    train(config_, damaged({.rank = 1, .after_steps = {20}, .bits = kWrong, .num_weights = 4000}));
    ASSERT_EQ(metrics("run").reruns.size(), 2u) << output_;
    EXPECT_THAT(message(0), ContainsRegex("^step 21: loss .* is a spike; back to .*step_00000016 "
                                          "to run steps 17 to 21 again"));
    EXPECT_THAT(message(1),
                ContainsRegex("ran again from .*step_00000016, and step 21 was the "
                              "first with other bits: a device failed; the run goes on"));
    expect_healed(24);
    std::filesystem::remove_all(path("run"));
    std::filesystem::remove_all(path("whole"));
  }
}

TEST_F(FaultWatches, ALossThatIsNotFiniteIsUndoneIfADeviceFailed) {
  config_.parallel.ranks = 1;
  config_.runtime.check_replicas = 0;
  train(config_, damaged({.rank = 0, .after_steps = {5}, .bits = kNotFinite, .num_weights = 1000}));
  ASSERT_EQ(metrics("run").reruns.size(), 2u) << output_;
  EXPECT_THAT(message(0), ContainsRegex("^step 6: loss .* to run steps 5 to 6 again"));
  EXPECT_THAT(message(1), HasSubstr("step 6 was the first with other bits: a device failed"));
  expect_healed(12);
}

TEST_F(FaultWatches, ASpikeOfTheDataRunsAgainOnceAfterACheckpoint) {
  listen_to_noise();
  config_.train.steps = 32;
  config_.checkpoint.interval = 8;
  train_in(config_);
  const std::vector<RerunRecord> reruns = metrics("run").reruns;
  ASSERT_EQ(reruns.size(), 4u) << output_;
  EXPECT_THAT(reruns[1].message, ContainsRegex("with the same bits: this comes from the data or "
                                               "the learning rate, not from a device"));
  EXPECT_EQ(reruns[0].from_step, 16);
  EXPECT_EQ(reruns[2].from_step, 24);
  EXPECT_THAT(output_, ContainsRegex("is a spike; no step runs again: steps after .*step_000000(16|"
                                     "24) have run again before"));
  expect_healed(32);
}

TEST_F(FaultWatches, ASpikeTooFarFromACheckpointIsNamed) {
  listen_to_noise();
  config_.runtime.rerun_steps = 2;
  config_.train.steps = 30;
  config_.checkpoint.interval = 0;
  train_in(config_);
  EXPECT_EQ(metrics("run").reruns.size(), 0u);
  const std::string line = "steps since the initial weights, more than runtime.rerun_steps = 2\n";
  const size_t first = output_.find(line);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(output_.find(line, first + 1), std::string::npos);
}

TEST_F(FaultWatches, SpikesMayBeOff) {
  listen_to_noise();
  config_.runtime.rerun_spike = 0;
  config_.train.steps = 30;
  train_in(config_);
  EXPECT_THAT(output_, Not(HasSubstr("rerun    ")));
}

TEST_F(FaultWatches, StepsInFlightRunAgain) {
  listen_to_noise();
  config_.train.steps = 24;
  config_.checkpoint.interval = 8;
  config_.parallel.ranks = 2;
  config_.train.global_batch = 8;
  TrainerOptions options;
  options.adjust_engine = [](EngineOptions& engine) {
    engine.wrap_executor = [](std::unique_ptr<Executor> made, int rank) {
      return std::make_unique<DeferredExecutor>(
          std::move(made), DeferredExecutor::Options{.seed = static_cast<uint32_t>(rank) + 1});
    };
  };
  train_in(config_, options);
  ASSERT_EQ(metrics("run").reruns.size(), 2u) << output_;
  EXPECT_THAT(message(1), HasSubstr("with the same bits"));
  expect_healed(24);
}

}  // namespace
}  // namespace braid
