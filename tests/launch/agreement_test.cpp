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
using ::testing::Not;
using ::testing::StartsWith;

using ConfigOfRank = std::function<RunConfig(int rank)>;

/// What each of four processes, a rank each, says to programs that they plan from these.
std::vector<std::string> errors_of(const ConfigOfRank& config_of_rank) {
  LocalProcesses processes(4);
  return on_threads(4, [&](int rank) {
    finish_or_abort(processes[rank], [&] {
      const RunConfig config = config_of_rank(rank);
      agree_on_programs(processes[rank], plan_for_rank(resolve_run(config, 0), rank));
      processes[rank].barrier("plan");
    });
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

TEST(AgreeOn, NamesTheFirstRankWithAnotherConfiguration) {
  const RunConfig config = config_of({kLlamaModel, "ranks=4 pipeline=2"});
  RunConfig other = config;
  other.train.seed = 77;
  LocalProcesses processes(4);
  const std::vector<std::string> errors = on_threads(4, [&](int rank) {
    agree_on(processes[rank], facts_of_start(config));
    agree_on(processes[rank], facts_of_start(rank == 2 ? other : config));
  });
  EXPECT_THAT(errors, Each(AllOf(StartsWith("the configuration of rank 2 differs from that of rank "
                                            "0: seed = 77, and rank 0: seed = "),
                                 HasSubstr("give all processes the same run file"))));
}

TEST(AgreeOn, HasALineForEachFactThatDiffers) {
  LocalProcesses processes(4);
  const std::vector<std::string> errors = on_threads(4, [&](int rank) {
    const std::string build = rank == 1 ? "b2" : "b1";
    const std::string data = rank >= 2 ? fmt::format("d{}", rank) : "d0";
    agree_on(processes[rank], std::vector<Fact>{{"build", build, "copy it"},
                                                {"BLAS", "OpenBLAS", "install it"},
                                                {"data", data, "look at it"}});
  });
  EXPECT_THAT(errors,
              Each("the build of rank 1 differs from that of rank 0: b2, and rank 0: b1; copy it\n"
                   "the data of rank 2 differs from that of rank 0: d2, and rank 0: d0 (2 ranks "
                   "differ from rank 0); look at it"));
}

TEST(AgreeOn, KeepsTextsOfOthersInOneLine) {
  LocalProcesses processes(2);
  const std::vector<std::string> errors = on_threads(2, [&](int rank) {
    agree_on(
        processes[rank],
        std::vector<Fact>{{"name", rank == 0 ? "a" : "\x1b[31m" + std::string(999, 'x'), "-"}});
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("of rank 0: \\u001B[31mxxx"), HasSubstr("xxx..."))));
}

TEST(FactOfNumerics, NamesTheLibraries) {
  const Fact fact = fact_of_numerics({});
  EXPECT_THAT(fact.value, Not(::testing::IsEmpty()));
}

}  // namespace
}  // namespace braid
