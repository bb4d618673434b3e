#include <random>

#include "checkpoint/checkpoint.h"
#include "cli/cli_fixture.h"
#include "report/metrics_file.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

/// Runs that are ended from outside, at moments that no test can choose.
class Stop : public Cli {
 protected:
  Stop() { write_run(); }
};

class StopSignal : public Stop, public testing::WithParamInterface<int> {};

TEST_P(StopSignal, SavesTheLastStepAndEnds) {
  const Words endless = train({"train.steps=1000000", "optimizer.schedule=constant",
                               "checkpoint.interval=0", "eval.interval=0", "logging.interval=1"});
  ChildProcess process(command(endless), in_folder());
  ASSERT_TRUE(process.read_until(has_steps(5), kPatience));
  process.send(GetParam());
  const ChildResult result = process.wait(kPatience);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("stopped after step "));

  const auto latest = find_latest_checkpoint(path("runs/run/checkpoints"));
  ASSERT_TRUE(latest.has_value());
  const int64_t step = LoadedCheckpoint(*latest).state().step;
  EXPECT_EQ(read_metrics(path("runs/run/metrics.jsonl")).steps.back().step, step);
  Words more = endless;
  more.insert(more.end(), {"--stop-after", std::to_string(step + 2)});
  EXPECT_THAT(output_of(more), HasSubstr("after step " + std::to_string(step) + "\n"));
  const Metrics metrics = read_metrics(path("runs/run/metrics.jsonl"));
  ASSERT_EQ(metrics.steps.size(), static_cast<size_t>(step + 2));
  for (size_t i = 0; i < metrics.steps.size(); ++i) {
    EXPECT_EQ(metrics.steps[i].step, static_cast<int64_t>(i) + 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Signals, StopSignal, testing::Values(SIGTERM, SIGINT, SIGHUP), [](const auto& signal) {
      return std::string(signal.param == SIGTERM ? "Term" : signal.param == SIGINT ? "Int" : "Hup");
    });

TEST_F(Stop, KilledAtAnyMomentEndsWithTheSameBytes) {
  constexpr int64_t kSteps = 240;
  const auto run = [&](const std::string& folder) {
    return train({"logging.run_folder=" + folder, "train.steps=" + std::to_string(kSteps),
                  "checkpoint.interval=3", "logging.interval=1", "eval.interval=50"});
  };
  output_of(run("whole"));
  std::mt19937 random(20);  // moments also depend on the machine: any of them must do
  for (int kill = 0; kill < 3; ++kill) {
    ChildProcess process(command(run("killed")), in_folder());
    const auto steps = static_cast<int64_t>(random() % 60 + 1);
    ASSERT_TRUE(process.read_until(has_steps(steps), kPatience));
    process.send(SIGKILL);
    EXPECT_EQ(process.wait(kPatience).signal, SIGKILL);
  }
  EXPECT_THAT(output_of(run("killed")), HasSubstr("finished after step 240; "));
  const auto whole = find_latest_checkpoint(path("whole/checkpoints"));
  const auto killed = find_latest_checkpoint(path("killed/checkpoints"));
  ASSERT_TRUE(whole && killed);
  EXPECT_TRUE(tensors_of("whole/checkpoints/step_00000240") ==
              tensors_of("killed/checkpoints/step_00000240"));
  const Metrics expected = read_metrics(path("whole/metrics.jsonl"));
  const Metrics found = read_metrics(path("killed/metrics.jsonl"));
  ASSERT_EQ(found.steps.size(), expected.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(found.steps[i].loss, expected.steps[i].loss) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace braid
