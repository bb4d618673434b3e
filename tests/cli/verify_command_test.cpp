#include "cli/cli_fixture.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class VerifyCommand : public Cli {
 protected:
  VerifyCommand() { write_run(); }
};

TEST_F(VerifyCommand, ComparesALayoutWithOneRank) {
  EXPECT_THAT(output_of({"verify", "run.toml", "--set", "parallel.tensor=2", "--set",
                         "parallel.ranks=4", "--set", "parallel.shard=gradients"}),
              AllOf(HasSubstr("layout    4 ranks = tensor 2 x context 1 x data 2 x pipeline 1\n"),
                    HasSubstr("shards    optimizer state and gradients over 2 ranks\n"),
                    HasSubstr("tensors in float64, largest difference from one rank "),
                    HasSubstr("step 3    loss "), HasSubstr("equal     to one rank")));
  EXPECT_FALSE(exists("runs"));
}

TEST_F(VerifyCommand, WorksForPresetsAndBfloat16) {
  write("gpt2.toml", "[model]\npreset = \"gpt2-124m\"\n[train]\ndtype = \"bfloat16\"\n");
  EXPECT_THAT(output_of({"verify", "gpt2.toml", "--set", "parallel.ranks=2", "--set",
                         "parallel.pipeline=2", "--steps", "1"}),
              AllOf(HasSubstr("pipeline  Et*6|t*6L, 1f1b of 4 microbatches"), HasSubstr("equal ")));
}

// Sums of rounded gradients are not those of one rank, whatever the layers compute in.
TEST_F(VerifyCommand, AllowsForGradientsThatCrossInBfloat16) {
  EXPECT_THAT(output_of({"verify", "run.toml", "--set", "parallel.grad_reduce_dtype=bfloat16",
                         "--set", "optimizer.learning_rate=1e-2"}),
              HasSubstr("equal "));
}

// Three tensor ranks share the rows of each of three context ranks.
TEST_F(VerifyCommand, ShrinksSequencesToRowsThatTensorRanksCanShare) {
  EXPECT_THAT(output_of({"verify", "run.toml", "--set", "parallel.ranks=9", "--set",
                         "parallel.tensor=3", "--set", "parallel.context=3", "--set",
                         "parallel.sequence_parallel=true", "--set", "model.heads=3", "--set",
                         "model.width=36", "--set", "model.ffn=48", "--set", "train.sequence=36"}),
              HasSubstr("equal "));
}

// What becomes of rows without room is no property of the layout, and no bug.
TEST_F(VerifyCommand, SaysThatExpertsHaveRoomForAllRows) {
  const auto output_with = [&](const std::string& on_overflow) {
    return output_of({"verify",  "run.toml",
                      "--steps", "1",
                      "--set",   "model.family=olmoe",
                      "--set",   "model.experts=4",
                      "--set",   "model.experts_per_token=2",
                      "--set",   "model.expert_ffn=8",
                      "--set",   "parallel.ranks=2",
                      "--set",   "parallel.expert=2",
                      "--set",   "moe.capacity=0.5",
                      "--set",   "moe.on_overflow=" + on_overflow});
  };
  EXPECT_THAT(output_with("drop"),
              AllOf(HasSubstr("with moe.capacity = 0.5 and on_overflow = \"drop\" the run drops "),
                    HasSubstr("equal ")));
  EXPECT_THAT(output_with("error"), AllOf(HasSubstr("the run stops "), HasSubstr("equal ")));
  EXPECT_THAT(output_with("rerun"),
              AllOf(Not(HasSubstr("experts   have room")), HasSubstr("equal ")));
}

TEST_F(VerifyCommand, RefusesImpossibleLayouts) {
  EXPECT_THAT(
      error_of({"verify", "run.toml", "--set", "parallel.ranks=3", "--set", "parallel.tensor=3"},
               2),
      HasSubstr("parallel.tensor = 3"));
  EXPECT_THAT(error_of({"verify", "run.toml", "--set", "parallel.ranks=2", "--set",
                        "parallel.pipeline=2", "--set", "parallel.schedule=zb-v"},
                       2),
              HasSubstr("parallel.virtual_stages"));
  // The shrunken model could be shared by two ranks; this one cannot.
  EXPECT_THAT(
      error_of({"verify", "run.toml", "--set", "parallel.tensor=2", "--set", "model.ffn=63"}, 2),
      HasSubstr("parallel.tensor = 2: must divide model.ffn = 63"));
}

TEST_F(VerifyCommand, RefusesMoreRanksThanAMachineHasThreadsFor) {
  EXPECT_THAT(error_of({"verify", "run.toml", "--set", "parallel.ranks=1024", "--set",
                        "parallel.tensor=2", "--set", "train.global_batch=65536"},
                       2),
              AllOf(HasSubstr("parallel.ranks = 1024"), HasSubstr("at most 512"),
                    HasSubstr("--set parallel.data=2 --set parallel.ranks=4")));
}

}  // namespace
}  // namespace braid
