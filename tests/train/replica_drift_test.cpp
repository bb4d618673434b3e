// A bit of one rank's state flips in the middle of a run that may not go back: the run ends with
// the rank's name before it saves that state, and its next start continues as if nothing had
// happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/expect_error.h"
#include "checkpoint/checkpoint.h"
#include "support/damaged_runs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ReplicaDrift : public DamagedRuns {
 protected:
  ReplicaDrift() { config_.runtime.rerun_steps = 0; }
};

TEST_F(ReplicaDrift, IsNamedBeforeTheNextCheckpoint) {
  const std::string error =
      message_of<DeviceError>([&] { train(config_, damaged({.rank = 1, .after_steps = {5}})); });
  EXPECT_THAT(error, AllOf(StartsWith("rank 1 holds other bits of head.output (weights) than rank "
                                      "0, rank 2 after step 6 (all copies were equal after step "
                                      "4): "),
                           HasSubstr("resumes from " + newest())));
  EXPECT_EQ(read_text_file(path("run/checkpoints/latest"), 100), "step_00000004\n");
  EXPECT_THAT(train_in(config_).checkpoint, HasSubstr("step_00000012"));
  train_whole();
  expect_same_files("run", "whole", 12, 3);
}

TEST_F(ReplicaDrift, IsFoundAtTheInterval) {
  config_.checkpoint.interval = 0;
  config_.runtime.check_replicas = 3;
  EXPECT_THAT(
      message_of<DeviceError>([&] { train(config_, damaged({.rank = 2, .after_steps = {4}})); }),
      AllOf(ContainsRegex("^rank 2 holds .* after step 6 .*were equal after step 3"),
            HasSubstr("start the run again; ")));
  config_.runtime.check_replicas = 0;
  EXPECT_EQ(train(config_, damaged({.rank = 2, .after_steps = {4}})).last_step, 12);
}

TEST_F(ReplicaDrift, IsFoundAtALossSpike) {
  config_.checkpoint.interval = 0;
  config_.train.steps = 70;
  EXPECT_THAT(
      message_of<DeviceError>([&] {
        train(config_,
              damaged(
                  {.rank = 0, .after_steps = {60}, .bits = kSign, .num_weights = kOutputWeights}));
      }),
      ContainsRegex("^rank 0 holds other bits of head.output .* after step 61:"));
}

TEST_F(ReplicaDrift, IsTheSameErrorInAllProcesses) {
  EXPECT_THAT(errors_of_processes({.rank = 1, .after_steps = {5}}),
              Each(ContainsRegex("rank 1 .*holds other bits of head.output .weights. than rank 0 "
                                 ".*, rank 2 .* after step 6")));
  EXPECT_EQ(read_text_file(path("run/checkpoints/latest"), 100), "step_00000004\n");
}

TEST_F(ReplicaDrift, AllProcessesCompareAtALossSpike) {
  config_.checkpoint.interval = 0;
  config_.train.steps = 70;
  EXPECT_THAT(errors_of_processes(
                  {.rank = 1, .after_steps = {60}, .bits = kSign, .num_weights = kOutputWeights}),
              Each(ContainsRegex("rank 1 .*holds other bits of head.output .* after step 61:")));
}

}  // namespace
}  // namespace braid
