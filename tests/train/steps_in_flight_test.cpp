// Training with the next step launched before the current one has ended: the same bits, files and
// messages. The CPU has one step in flight; these tests wrap it in executors that have two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "checkpoint/checkpoint.h"
#include "plan/run_spec.h"
#include "support/deferred_executor.h"
#include "support/thinned.h"
#include "support/whole_runs.h"

namespace braid {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

/// Options of an engine whose ranks are late at random, each in its own way.
EngineOptions deferred(int* deepest = nullptr) {
  EngineOptions options;
  options.poison_step_arena = true;
  options.wrap_executor = [deepest](std::unique_ptr<Executor> made, int rank) {
    return std::make_unique<DeferredExecutor>(
        std::move(made),
        DeferredExecutor::Options{.seed = static_cast<uint32_t>(rank) + 1, .deepest = deepest});
  };
  return options;
}

RunConfig laid_out(const ParallelConfig& parallel) {
  RunConfig config = small_config();
  config.parallel = parallel;
  return resolved(config);
}

TEST(StepsInFlight, GiveTheBitsOfOneAfterTheOther) {
  ParallelConfig staged{.ranks = 2, .pipeline = 2};
  staged.schedule = "1f1b";
  constexpr int64_t kSteps = thinned_count(int64_t{50}, 3);
  for (const ParallelConfig& parallel :
       {ParallelConfig{}, ParallelConfig{.ranks = 2, .shard = "parameters"},
        ParallelConfig{.ranks = 2, .tensor = 2}, staged}) {
    const RunConfig config = laid_out(parallel);
    int deepest = 0;
    const Outcome behind = train_steps(config, deferred(&deepest), kSteps);
    EXPECT_EQ(deepest, 2);
    ASSERT_EQ(behind.losses.size(), static_cast<size_t>(kSteps));
    EXPECT_LT(behind.losses.back(), behind.losses.front());
    EngineOptions one = deferred(&deepest);
    one.steps_in_flight = 1;
    deepest = 0;
    expect_same_bits(train_steps(config, one, kSteps), behind);
    EXPECT_EQ(deepest, 1);
    expect_same_bits(train_steps(config, {.poison_step_arena = true}, kSteps), behind);
  }
}

TEST(StepsInFlight, NothingElseIsDoneMeanwhile) {
  const RunConfig config = laid_out({});
  Engine engine(plan_run(resolve_run(config, 50)), deferred());
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(16);
  BatchLoader loader(source, {.shape = {.num_ranks = 1, .num_microbatches = 4, .microbatch = 2}});
  const StepBatch batch = *loader.next();
  EXPECT_THROW(engine.finish_step(), InternalError);
  ASSERT_EQ(engine.max_steps_in_flight(), 2);
  engine.begin_step(batch, config.optimizer, 1e-3, 1);
  EXPECT_THROW(engine.evaluate(batch), InternalError);
  EXPECT_THROW(engine.check_last_step(), InternalError);
  EXPECT_THROW(engine.set_tracing(true), InternalError);
  EXPECT_THROW(engine.train_step(batch, config.optimizer, 1e-3, 2), InternalError);
  engine.begin_step(batch, config.optimizer, 1e-3, 2);
  EXPECT_THROW(engine.begin_step(batch, config.optimizer, 1e-3, 3), InternalError);
  const StepResult first = engine.finish_step();
  EXPECT_LT(engine.finish_step().loss, first.loss);
  EXPECT_NO_THROW(engine.evaluate(batch));
}

TEST(StepsInFlight, AnEngineMayEndWithThem) {
  const RunConfig config = laid_out({.ranks = 2});
  const NoisySequences source(16);
  BatchLoader loader(source, {.shape = {.num_ranks = 2, .num_microbatches = 2, .microbatch = 2}});
  for (int num_steps = 1; num_steps <= 2; ++num_steps) {
    Engine engine(plan_run(resolve_run(config, 50)), deferred());
    engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
    for (int64_t step = 1; step <= num_steps; ++step) {
      engine.begin_step(*loader.next(), config.optimizer, 1e-3, step);
    }
  }
}

TEST(StepsInFlight, TheCpuHasOne) {
  const RunConfig config = laid_out({});
  EXPECT_EQ(Engine(plan_run(resolve_run(config, 50)), {}).max_steps_in_flight(), 1);
}

/// Whole runs of `train` on ranks that have two steps in flight.
class RunsInFlight : public WholeRuns {
 protected:
  TrainingSummary run(const RunConfig& config, TrainerOptions options = {}) {
    options.adjust_engine = [this](EngineOptions& engine) {
      deepest_ = 0;
      engine.wrap_executor = deferred(&deepest_).wrap_executor;
    };
    return train_in(config, options);
  }
  TrainingSummary run_plainly(const RunConfig& config) { return train_in(config); }

  int deepest_ = 0;
};

// With evaluations, checkpoints and traced steps in the middle.
TEST_F(RunsInFlight, LeaveTheSameFolder) {
  run_plainly(config("plain"));
  run(config("behind"));
  EXPECT_EQ(deepest_, 2);
  EXPECT_EQ(records_of(metrics("behind")), records_of(metrics("plain")));
  EXPECT_EQ(kinds_of_lines(read("behind/metrics.jsonl")),
            kinds_of_lines(read("plain/metrics.jsonl")));
  for (const int64_t step : {4, 8, 12}) {
    expect_same_files("behind", "plain", step, 2);
  }
  const nlohmann::json report = nlohmann::json::parse(read("behind/report.json"));
  EXPECT_EQ(report["timeline"]["ranks"].size(), 2u);
  EXPECT_EQ(report["timeline"]["ranks"][0]["step"], 7);
}

TEST_F(RunsInFlight, AreOffWhereTheConfigurationSaysSo) {
  RunConfig c = config("one");
  c.runtime.steps_in_flight = 1;
  run(c);
  EXPECT_EQ(deepest_, 1);
  c = config("tensors");
  c.runtime.detect_nan = "tensors";
  run(c);
  EXPECT_EQ(deepest_, 1);
  EXPECT_EQ(records_of(metrics("tensors")), records_of(metrics("one")));
}

TEST_F(RunsInFlight, GoOnBitwiseFromWhereTheyStopped) {
  run(config("whole"));
  TrainerOptions options;
  options.stop_after_step = 5;
  EXPECT_EQ(run(config("parts"), options).last_step, 5);
  options.stop_after_step = 10;
  EXPECT_EQ(run(config("parts"), options).last_step, 10);
  EXPECT_EQ(run(config("parts")).last_step, 12);
  EXPECT_EQ(records_of(metrics("parts")), records_of(metrics("whole")));
  expect_same_files("parts", "whole", 12, 2);
}

// The step that is in flight when it is asked for is the last one.
TEST_F(RunsInFlight, AStopSavesTheStepThatHasBegun) {
  RunConfig c = config("stopped");
  c.eval.interval = 100;
  c.checkpoint.interval = 0;
  c.logging.trace_steps = {};
  int64_t asked = 0;
  TrainerOptions options;
  options.stop_requested = [&] { return ++asked == 3; };
  const TrainingSummary summary = run(c, options);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(summary.last_step, 4);
  EXPECT_TRUE(summary.stopped_early);
  EXPECT_EQ(LoadedCheckpoint(summary.checkpoint).state().step, 4);
  EXPECT_EQ(metrics("stopped").steps.size(), 4u);
}

// A learning rate that makes the loss infinite within a few steps.
TEST_F(RunsInFlight, ALossThatIsNotFiniteStopsWithItsStepAndLeavesTheCheckpoints) {
  RunConfig c = config("plain");
  c.optimizer.learning_rate = 1e30;
  c.optimizer.warmup_steps = 0;
  c.checkpoint.interval = 1;
  c.eval.interval = 100;
  c.logging.trace_steps = {};
  c.runtime.rerun_steps = 0;
  const std::string plain = message_of<DeviceError>([&] { run_plainly(c); });
  EXPECT_THAT(plain, ContainsRegex("^step [0-9]+: loss .*runtime.detect_nan = \"loss\"$"));
  c.logging.run_folder = path("saved");
  EXPECT_EQ(message_of<DeviceError>([&] { run(c); }), plain);
  EXPECT_EQ(read("saved/checkpoints/latest"), read("plain/checkpoints/latest"));
  c.checkpoint.interval = 0;  // with a step after it
  c.logging.run_folder = path("behind");
  EXPECT_EQ(message_of<DeviceError>([&] { run(c); }), plain);
  EXPECT_EQ(deepest_, 2);
  EXPECT_EQ(records_of(metrics("behind")), records_of(metrics("plain")));
  c.runtime.detect_nan = "tensors";
  c.logging.run_folder = path("tensors");
  EXPECT_THAT(message_of<DeviceError>([&] { run(c); }),
              ContainsRegex("run again: rank [01], stream compute, task .* wrote NaN or infinity"));
}

}  // namespace
}  // namespace braid
