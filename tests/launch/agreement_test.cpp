#include "launch/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "comm/wires.h"
#include "parity/layout_config.h"
#include "plan/rank_programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using ConfigOfRank = std::function<RunConfig(int rank)>;

/// What each of four processes, a rank each, says to programs that they plan from these.
std::vector<std::string> errors_of(const ConfigOfRank& config_of_rank) {
  LocalProcesses processes(4);
  return on_threads(4, [&](int rank) {
    try {
      const RunConfig config = config_of_rank(rank);
      agree_on_programs(processes[rank], plan_for_rank(resolve_run(config, 0), rank));
      processes[rank].barrier("plan");
    } catch (const std::exception& error) {
      abort_with_rank(processes[rank], error.what());
      throw;
    }
  });
}

TEST(AgreeOnPrograms, ThatFitTogether) {
  for (const char* const layout : {"ranks=4", "ranks=4 pipeline=2 tensor=2 sequence_parallel=true",
                                   "ranks=4 shard=parameters", "ranks=4 pipeline=4"}) {
    SCOPED_TRACE(layout);
    const RunConfig config = config_of({kLlamaModel, layout});
    EXPECT_THAT(errors_of([&](int) { return config; }), Each(""));
  }
}

TEST(AgreeOnPrograms, NamesTheFirstCallThatAProcessHasPlannedOtherwise) {
  const RunConfig config = config_of({kLlamaModel, "ranks=4 pipeline=2"});
  RunConfig other = config;
  other.train.sequence = 24;  // messages are twice as large
  for (const int odd : {1, 2}) {
    SCOPED_TRACE(odd);
    const std::vector<std::string> errors =
        errors_of([&](int rank) { return rank == odd ? other : config; });
    EXPECT_THAT(errors[0],
                AllOf(StartsWith(fmt::format("the program of rank {} differs: call ", odd)),
                      HasSubstr("of program train is \""), HasSubstr("f32[1152]"),
                      HasSubstr("but rank 0 plans \""), HasSubstr("f32[576]")));
    for (size_t rank = 1; rank < 4; ++rank) {
      EXPECT_THAT(errors[rank], AllOf(StartsWith("aborted: "), HasSubstr(errors[0]))) << rank;
    }
  }
}

TEST(AgreeOnConfiguration, NamesTheFirstRankThatDiffers) {
  const RunConfig config = config_of({kLlamaModel, "ranks=4 pipeline=2"});
  RunConfig other = config;
  other.train.seed = 77;
  LocalProcesses processes(4);
  const std::vector<std::string> errors = on_threads(4, [&](int rank) {
    agree_on_configuration(processes[rank], config);
    agree_on_configuration(processes[rank], rank == 2 ? other : config);
  });
  EXPECT_THAT(errors, Each(AllOf(StartsWith("the configuration of rank 2 differs from that of rank "
                                            "0: seed = 77, and rank 0: seed = "),
                                 HasSubstr("give all processes the same run file"))));
}

}  // namespace
}  // namespace braid
