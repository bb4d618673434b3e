// Whole runs whose ranks lack room for rows of experts (moe.on_overflow).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "support/whole_runs.h"

namespace braid {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class OverflowRun : public WholeRuns {
 protected:
  /// Four ranks, two stages, four microbatches, with evaluations and traced steps.
  RunConfig experts_config(const std::string& run, double capacity = 0) const {
    RunConfig config = WholeRuns::config(run);
    config.model.pattern = "attention+moe*2";
    config.model.layers = 2;
    config.model.experts = 4;
    config.model.experts_per_token = 2;
    config.model.expert_ffn = 16;
    config.model.init_std = 0.3;
    config.train.microbatch = 1;
    config.parallel.ranks = 4;
    config.parallel.pipeline = 2;
    config.parallel.expert = 2;
    config.moe.capacity = capacity;
    config.moe.watch = 1;
    return config;
  }
  void expect_same_results(const std::string& a, const std::string& b) const {
    const Metrics of_a = metrics(a);
    const Metrics of_b = metrics(b);
    ASSERT_EQ(of_a.steps.size(), 12u);
    ASSERT_EQ(of_b.steps.size(), 12u);
    for (size_t i = 0; i < of_a.steps.size(); ++i) {
      EXPECT_EQ(of_a.steps[i].loss, of_b.steps[i].loss) << i;
      EXPECT_EQ(of_a.steps[i].grad_norm, of_b.steps[i].grad_norm) << i;
      EXPECT_EQ(of_a.steps[i].skipped_steps, 0);
      EXPECT_EQ(of_a.steps[i].nan_steps, 0);
    }
    ASSERT_EQ(of_a.evaluations.size(), of_b.evaluations.size());
    for (size_t i = 0; i < of_a.evaluations.size(); ++i) {
      EXPECT_EQ(of_a.evaluations[i].loss, of_b.evaluations[i].loss) << i;
    }
    expect_same_files(a, b, 12, 4);
  }
  int64_t reruns_of(const std::string& run) const {
    int64_t sum = 0;
    for (const StepRecord& step : metrics(run).steps) {
      sum += step.reruns;
    }
    return sum;
  }
};

TEST_F(OverflowRun, RerunsHaveTheBitsOfEnoughRoomAndAreCountedApart) {
  train_in(experts_config("ample"));
  EXPECT_THAT(read("ample/plan.txt"), Not(HasSubstr("\noverflow ")));
  RunConfig tight = experts_config("tight", 0.75);
  tight.eval.interval = 0;
  train_in(tight);
  EXPECT_GE(reruns_of("tight"), 1);
  EXPECT_EQ(reruns_of("ample"), 0);
  EXPECT_THAT(output_, ContainsRegex("\n     .*[12] reruns\n"));
  EXPECT_THAT(output_, ContainsRegex("\nrerun    step 1: more rows of experts came to a rank than "
                                     "it had room for; it ran again with (moe.capacity = 1.5|room "
                                     "for all rows), which needs [0-9.]+ [KM]iB per rank\n"));
  EXPECT_THAT(read("tight/plan.txt"), HasSubstr("\noverflow "));
  EXPECT_THAT(read("tight/report.html"), HasSubstr("Step 1 ran again for more room."));
  EXPECT_THAT(read("tight/config.toml"), HasSubstr("capacity = 0.75"));
  RunConfig ample = experts_config("ample_without_evaluations");
  ample.eval.interval = 0;
  train_in(ample);
  expect_same_results("tight", "ample_without_evaluations");
}

TEST_F(OverflowRun, EvaluationsAndResumedRunsHaveThemToo) {
  train_in(experts_config("ample"));
  const RunConfig config = experts_config("tight", 0.75);
  TrainerOptions options;
  options.stop_after_step = 6;
  train_in(config, options);
  train_in(config);  // begins again with little room
  expect_same_results("tight", "ample");
}

TEST_F(OverflowRun, DroppedRowsChangeTheLossAndAreRecorded) {
  train_in(experts_config("ample"));
  RunConfig config = experts_config("dropping", 0.75);
  config.moe.on_overflow = "drop";
  train_in(config);
  const Metrics found = metrics("dropping");
  EXPECT_NE(found.steps.front().loss, metrics("ample").steps.front().loss);
  EXPECT_EQ(reruns_of("dropping"), 0);
  EXPECT_EQ(found.experts.size(), 24u);
  constexpr double kRows = 8 * 16 * 2;  // of a layer and step
  for (const ExpertRecord& record : found.experts) {
    ASSERT_TRUE(record.room.has_value());
    EXPECT_GE(record.room->dropped_share, 0.25);
    EXPECT_EQ(record.room->dropped_share, static_cast<double>(record.room->dropped_rows) / kRows);
    EXPECT_GE(record.room->room_used, 1 / 0.75);
    EXPECT_DOUBLE_EQ(record.room->sufficient_capacity, record.room->room_used * 0.75);
  }
  EXPECT_THAT(output_, ContainsRegex("room used [1-9][0-9][0-9]%, dropped rows [0-9.]+%\n"));
  EXPECT_THAT(read("dropping/report.html"), HasSubstr(" rows were dropped."));
}

TEST_F(OverflowRun, CapacityThatTheRecordsNameSuffices) {
  train_in(experts_config("ample"));
  double capacity = 0;
  for (const ExpertRecord& record : metrics("ample").experts) {
    capacity = std::max(capacity, record.room->sufficient_capacity);
  }
  RunConfig config = experts_config("enough", capacity);
  config.moe.on_overflow = "error";
  config.eval.interval = 0;
  EXPECT_EQ(train_in(config).last_step, 12);
}

TEST_F(OverflowRun, ErrorStopsWithOneLine) {
  RunConfig config = experts_config("stopping", 0.75);
  config.moe.on_overflow = "error";
  config.eval.interval = 0;
  const std::string message = message_of<DeviceError>([&] { train_in(config); });
  EXPECT_THAT(message, ContainsRegex("^step 1: loss .*room for moe.capacity = 0.75 of the rows"));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

}  // namespace
}  // namespace braid
