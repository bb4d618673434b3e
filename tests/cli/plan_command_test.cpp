#include "cli/cli_fixture.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

class PlanCommand : public Cli {
 protected:
  PlanCommand() { write_run(); }
};

TEST_F(PlanCommand, SaysWhatTheRunNeeds) {
  const std::string text = output_of({"plan", "run.toml", "--set", "train.steps=7"});
  for (const char* part : {"[train]", "steps = 7", "2 ranks x 2 microbatches x 2 sequences",
                           "insert_events", "optimizer state", "\npeak "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_FALSE(exists("runs"));
}

TEST_F(PlanCommand, ProgramParsesBack) {
  const std::string text = output_of({"plan", "run.toml", "--program"});
  const Program program = parse_program(text);
  verify_or_throw(program, "braid plan --program", Ordering::kEvents);
  EXPECT_EQ(print_program(program), text);
  EXPECT_GT(program.tasks.size(), 100u);
}

TEST_F(PlanCommand, LargestPresetNeedsNoDataNorMemory) {
  write("large.toml", "[model]\npreset = \"llama-405b\"\n");
  EXPECT_THAT(output_of({"plan", "large.toml"}), HasSubstr("405853.39 M parameters"));
}

TEST_F(PlanCommand, TensorBeyondAllLimitsIsRefused) {
  EXPECT_THAT(error_of({"plan", "run.toml", "--set", "train.microbatch=1048576", "--set",
                        "train.global_batch=2097152", "--set", "train.sequence=16777216"},
                       2),
              AllOf(HasSubstr("train.microbatch = 1048576"), HasSubstr("train.sequence = 16777216"),
                    HasSubstr("the limit is")));
}

TEST_F(PlanCommand, PassesCanBeDisabledByName) {
  const std::string whole = output_of({"plan", "run.toml", "--program"});
  EXPECT_NE(output_of({"plan", "run.toml", "--program", "--set",
                       "overlap.disable_passes=overlap_grad_reduce"}),
            whole);
  EXPECT_THAT(output_of({"plan", "run.toml", "--set", "overlap.disable_passes=assign_streams"}),
              HasSubstr("skipped: disabled"));
}

}  // namespace
}  // namespace braid
