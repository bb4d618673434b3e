// A bit of one rank's state flips in the middle of a run: the run ends with the rank's name before
// it saves that state, and its next start continues as if nothing had happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/expect_error.h"
#include "checkpoint/checkpoint.h"
#include "comm/wires.h"
#include "support/bit_flips.h"
#include "support/whole_runs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kHeadWeights = "params.head";

class ReplicaDrift : public WholeRuns {
 protected:
  ReplicaDrift() {
    config_ = config("run");
    config_.parallel.ranks = 3;
    config_.train.global_batch = 6;
    config_.checkpoint.interval = 2;
    config_.logging.trace_steps = {};
    config_.eval.interval = 0;
  }

  /// Flips the same bit of the first `num_weights` output weights of `rank` after that step.
  TrainerOptions damaged(size_t rank, int64_t after_step, int bit, int64_t num_weights = 1) {
    TrainerOptions options;
    options.print = [](std::string_view) {};
    options.adjust_engine = [=, this](EngineOptions& engine) {
      engine.wrap_executor = [=, this](std::unique_ptr<Executor> made, int of) {
        if (static_cast<size_t>(of) == rank) {
          executor_ = made.get();
        }
        return made;
      };
    };
    options.on_step = [=, this](const StepRecord& record) {
      if (record.step == after_step && executor_ != nullptr) {
        for (int64_t i = 0; i < num_weights; ++i) {
          flip(*executor_, {.rank = rank, .buffer = kHeadWeights, .byte = 4 * i + 3, .bit = bit});
        }
      }
    };
    return options;
  }

  /// Of three processes with a rank each, where rank 1 is damaged.
  std::vector<std::string> errors_of_processes(int64_t after_step, int bit,
                                               int64_t num_weights = 1) {
    LocalProcesses processes(3);
    return on_threads(3, [&](int rank) {
      TrainerOptions options;
      if (rank == 1) {
        options = damaged(1, after_step, bit, num_weights);
        options.stop_requested = [damage = options.on_step, ended = int64_t{0}]() mutable {
          damage({.step = ++ended});  // on_step is called in the first process only
          return false;
        };
      }
      options.print = [](std::string_view) {};
      options.processes = &processes[rank];
      train(config_, options);
    });
  }

  std::string newest() const { return path("run/checkpoints/step_00000004"); }

  RunConfig config_;
  Executor* executor_ = nullptr;
};

constexpr int kSmallChange = 0;  // of the exponent: by a factor of four
constexpr int kSign = 7;         // what was likely is unlikely
constexpr int64_t kOutputWeights = 32 * 257;

TEST_F(ReplicaDrift, IsNamedBeforeTheNextCheckpoint) {
  const std::string error =
      message_of<DeviceError>([&] { train(config_, damaged(1, 5, kSmallChange)); });
  EXPECT_THAT(error, AllOf(StartsWith("rank 1 holds other bits of head.output (weights) than rank "
                                      "0, rank 2 after step 6 (all copies were equal after step "
                                      "4): "),
                           HasSubstr("resumes from " + newest())));
  EXPECT_EQ(read_text_file(path("run/checkpoints/latest"), 100), "step_00000004\n");
  EXPECT_THAT(train_in(config_).checkpoint, HasSubstr("step_00000012"));
  RunConfig whole = config_;
  whole.logging.run_folder = path("whole");
  train_in(whole);
  expect_same_files("run", "whole", 12, 3);
}

TEST_F(ReplicaDrift, IsFoundAtTheInterval) {
  config_.checkpoint.interval = 0;
  config_.runtime.check_replicas = 3;
  EXPECT_THAT(message_of<DeviceError>([&] { train(config_, damaged(2, 4, kSmallChange)); }),
              AllOf(ContainsRegex("^rank 2 holds .* after step 6 .*were equal after step 3"),
                    HasSubstr("start the run again; ")));
  config_.runtime.check_replicas = 0;
  EXPECT_EQ(train(config_, damaged(2, 4, kSmallChange)).last_step, 12);
}

TEST_F(ReplicaDrift, IsFoundAtALossSpike) {
  config_.checkpoint.interval = 0;
  config_.train.steps = 70;
  EXPECT_THAT(
      message_of<DeviceError>([&] { train(config_, damaged(0, 60, kSign, kOutputWeights)); }),
      ContainsRegex("^rank 0 holds other bits of head.output .* after step 61:"));
}

TEST_F(ReplicaDrift, IsTheSameErrorInAllProcesses) {
  EXPECT_THAT(errors_of_processes(5, kSmallChange),
              Each(ContainsRegex("rank 1 .*holds other bits of head.output .weights. than rank 0 "
                                 ".*, rank 2 .* after step 6")));
  EXPECT_EQ(read_text_file(path("run/checkpoints/latest"), 100), "step_00000004\n");
}

TEST_F(ReplicaDrift, AllProcessesCompareAtALossSpike) {
  config_.checkpoint.interval = 0;
  config_.train.steps = 70;
  EXPECT_THAT(errors_of_processes(60, kSign, kOutputWeights),
              Each(ContainsRegex("rank 1 .*holds other bits of head.output .* after step 61:")));
}

}  // namespace
}  // namespace braid
