// A rank whose task never ends, in real training: all ranks end within seconds, with one message
// that names it and what it did last, and the checkpoint before is intact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "checkpoint/checkpoint.h"
#include "runtime/engine.h"
#include "support/cpu_executors.h"
#include "support/obstacle.h"
#include "train/trainer.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::chrono::seconds kLimit{5};  // of which 1 s is runtime.timeout_s

class StuckRank : public testing::Test {
 protected:
  StuckRank() {
    std::string corpus;
    for (int i = 0; i < 400; ++i) {
      corpus += "the cat sees a dog, and the bird likes the fish.\n";
    }
    write_test_file(folder_ / "corpus.txt", corpus);
    config_.model.layers = 4;
    config_.model.width = 16;
    config_.model.heads = 2;
    config_.train.sequence = 16;
    config_.train.microbatch = 1;
    config_.train.global_batch = 8;
    config_.train.steps = 3;
    config_.data.train = folder_ / "corpus.txt";
    config_.data.split = "1,0,0";
    config_.eval.interval = 0;
    config_.checkpoint.interval = 1;
    config_.logging.run_folder = folder_ / "run";
    config_.logging.trace_steps = {};
    config_.runtime.threads = 1;
    config_.runtime.timeout_s = 1;
  }

  /// The error of a run in which `rank` blocks before the `count`-th task of that op, in the second
  /// step.
  std::string stuck_at(int rank, const std::string& op, int count) {
    Obstacle obstacle;
    TrainerOptions options;
    options.print = [](std::string_view) {};
    options.adjust_engine = [&](EngineOptions& engine) {
      engine.stuck_timeout_ns = 300'000'000;
      engine.make_executor = hooked_ranks([&](int of_rank) {
        return of_rank == rank ? obstacle.before_op(op, count) : TaskHook();
      });
    };
    const auto start = std::chrono::steady_clock::now();
    const std::string message = message_of<DeviceError>([&] { train(config_, options); });
    EXPECT_LT(std::chrono::steady_clock::now() - start, kLimit);
    obstacle.remove();
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    EXPECT_EQ(LoadedCheckpoint(folder_ / "run/checkpoints/step_00000001").state().step, 1);
    return message;
  }

  TempFolder folder_;
  RunConfig config_;
};

// Blocks before the first task of the second of its four microbatches per step. Two streams of the
// other rank wait for it, each in its own sum.
TEST_F(StuckRank, BetweenTwoMicrobatches) {
  config_.parallel.ranks = 2;
  EXPECT_THAT(
      stuck_at(1, "embedding", 4 + 2),
      AllOf(StartsWith("rank 0, stream "),
            ContainsRegex("waited 1 s in group (gradient|loss), .*, for rank 1; rank 1: last call "
                          "[a-z_]+ of .*, finished; rank 1, stream compute, task [0-9]+ "
                          "\\(embedding .*mb=1.*\\) still runs 0.3 s after the failure$")));
}

TEST_F(StuckRank, OfTheTensorRanksOfALayer) {
  config_.parallel.ranks = 2;
  config_.parallel.tensor = 2;
  EXPECT_THAT(stuck_at(0, "attention", 8 * 4 + 3),
              AllOf(StartsWith("rank 1, stream "),
                    ContainsRegex(
                        "waited 1 s in group tensor, .*, for rank 0; rank 0: last call all_reduce "
                        "of .*, finished; rank 0, stream compute, task [0-9]+ \\(attention "
                        ".*mb=0.*\\) still runs 0.3 s after the failure$")));
}

// Neighbours wait for it in sends and receives, others for them.
TEST_F(StuckRank, InTheMiddleOfAPipeline) {
  config_.parallel.ranks = 4;
  config_.parallel.pipeline = 4;
  EXPECT_THAT(
      stuck_at(2, "attention_backward", 8 + 2),
      AllOf(
          ContainsRegex("^rank [013], stream [a-z.]+, task [0-9]+ \\((send|recv) .* waited 1 s in "
                        "group pipeline.(forward|backward), channel [0-9] from rank"),
          ContainsRegex("rank 2: last call (send|recv) of .* in group pipeline.(forward|backward), "
                        ".*, finished"),
          ContainsRegex("; rank 2, stream compute, task [0-9]+ \\(attention_backward .*mb=1.*\\) "
                        "still runs 0.3 s after the failure$")));
}

// Of the last stage, whose neighbour sends to it.
TEST_F(StuckRank, AtTheEndOfAPipeline) {
  config_.parallel.ranks = 2;
  config_.parallel.pipeline = 2;
  EXPECT_THAT(stuck_at(1, "cross_entropy", 8 + 5),
              AllOf(StartsWith("rank 0, stream "), HasSubstr("for rank 1"),
                    ContainsRegex("rank 1: last call (send|recv) of .*, finished; rank 1, stream "
                                  "compute, task [0-9]+ \\(cross_entropy .*mb=4.*\\) still runs")));
}

// Eleven tasks update weights in a step. Behind its last communication nobody waits for it but the
// trainer.
TEST_F(StuckRank, InTheOptimizer) {
  config_.parallel.ranks = 2;
  EXPECT_THAT(stuck_at(1, "adamw", 11 + 6),
              AllOf(StartsWith("rank 1 has not ended the step that rank 0 ended 1 s ago; rank 1: "
                               "last call "),
                    ContainsRegex("; rank 1, stream compute, task [0-9]+ \\(adamw .*\\) still runs "
                                  "0.3 s after the failure$")));
}

}  // namespace
}  // namespace braid
