#include "train/start_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/wires.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

RunIdentity identity(int64_t width) {
  RunIdentity identity{.config = small_config(), .facts = {{std::string(kDataFact), "some"}}};
  identity.config.model.width = width;
  return identity;
}

/// What three processes say to a run of width 32 that goes on from `start`, which only the first
/// one has read; `lines` are what it prints.
std::vector<std::string> agree(const ResumePoint& start, std::vector<std::string>& lines) {
  LocalProcesses processes(3);
  return on_threads(3, [&](int rank) {
    ResumePoint own = start;
    if (rank > 0) {
      own.recorded.reset();
    }
    const std::vector<std::string> changes =
        agree_on_changes(own, identity(32), {}, processes[rank]);
    processes[rank].barrier("the next thing");
    if (rank == 0) {
      lines = changes;
    } else {
      EXPECT_THAT(changes, IsEmpty());
    }
  });
}

TEST(AgreeOnChanges, AllProcessesRefuseAnotherRunAlike) {
  std::vector<std::string> lines;
  const std::vector<std::string> errors =
      agree({.checkpoint = "c/step_7", .count = {.step = 7}, .recorded = identity(64)}, lines);
  EXPECT_THAT(errors, Each(StartsWith("the checkpoint c/step_7 is of another run: "
                                      "model.width = 64 -> 32; set the former values, give "
                                      "--allow-change model.width to ")));
  EXPECT_THAT(lines, IsEmpty());
}

TEST(AgreeOnChanges, TheFirstProcessHasALineForEachChange) {
  std::vector<std::string> lines;
  RunIdentity before = identity(32);
  before.config.logging.interval = 3;
  before.config.memory.recompute = "full";
  EXPECT_THAT(agree({.checkpoint = "c", .count = {.step = 7}, .recorded = before}, lines),
              Each(""));
  EXPECT_THAT(lines,
              ElementsAre("memory.recompute = \"full\" -> \"none\"", "logging.interval = 3 -> 10"));
}

// As imported weights: they come without data, and with the defaults of every other key.
TEST(AgreeOnChanges, BeforeTheFirstStepOnlyTheModelCounts) {
  std::vector<std::string> lines;
  RunIdentity before = identity(32);
  before.config.train.sequence = 8;
  before.config.data.tokenizer = "ids:11";
  before.facts.clear();
  EXPECT_THAT(agree({.checkpoint = "c", .count = {}, .recorded = before}, lines), Each(""));
  EXPECT_THAT(lines, IsEmpty());
  before.config.model.width = 64;
  EXPECT_THAT(agree({.checkpoint = "c", .count = {}, .recorded = before}, lines),
              Each(StartsWith("the checkpoint c is of another run: model.width = 64 -> 32; ")));
}

}  // namespace
}  // namespace braid
