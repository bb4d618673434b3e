#include "cli/cli_fixture.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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

TEST_F(PlanCommand, ProgramOfAnyRankAndOfAllKinds) {
  const std::vector<std::string> pipeline = {"--set", "parallel.ranks=4", "--set",
                                             "parallel.pipeline=2"};
  const auto program = [&](std::vector<std::string> options) {
    std::vector<std::string> command = {"plan", "run.toml", "--program"};
    command.insert(command.end(), pipeline.begin(), pipeline.end());
    command.insert(command.end(), options.begin(), options.end());
    return command;
  };
  const std::string last = output_of(program({"--rank", "3"}));
  EXPECT_EQ(parse_program(last).rank, 3);
  const std::string all = output_of(program({"--all-ranks"}));
  EXPECT_THAT(all, StartsWith(output_of(program({})) + "\nprogram "));
  EXPECT_THAT(error_of(program({"--rank", "4"}), 2), HasSubstr("--rank 4: the ranks are 0 to 3"));
}

TEST_F(PlanCommand, SaysWhyAPassDidNotDoWhatAKeyAsksFor) {
  const std::vector<std::string> dense = {"plan",  "run.toml",
                                          "--set", "parallel.tensor=2",
                                          "--set", "parallel.sequence_parallel=true",
                                          "--set", "overlap.mode=manual",
                                          "--set", "overlap.pair_forward_backward=forward_halves"};
  std::vector<std::string> with_experts = dense;
  for (const char* const setting : {"model.family=qwen3", "model.experts=4",
                                    "model.experts_per_token=2", "model.expert_ffn=8"}) {
    with_experts.insert(with_experts.end(), {"--set", setting});
  }
  EXPECT_THAT(output_of(dense), HasSubstr("interleaved the halves of "));
  EXPECT_THAT(output_of(with_experts),
              HasSubstr("left forwards whole, since experts take all rows"));
}

TEST_F(PlanCommand, LargestPresetNeedsNoDataNorMemory) {
  write("large.toml", "[model]\npreset = \"llama-405b\"\n");
  EXPECT_THAT(output_of({"plan", "large.toml"}), HasSubstr("405853.39 M parameters"));
}

TEST_F(PlanCommand, SaysWhereAModelIsAnotherThanItsPreset) {
  write("preset.toml", "[model]\npreset = \"llama-1b\"\n");
  EXPECT_THAT(output_of({"plan", "preset.toml"}), Not(HasSubstr("\npreset   ")));
  EXPECT_THAT(output_of({"plan", "preset.toml", "--set", "model.layers=2", "--set",
                         "model.vocabulary=512"}),
              HasSubstr("\npreset   llama-1b with another layers, vocabulary\n"));
}

TEST_F(PlanCommand, DryRunShowsLayoutStagesAndJobsOnly) {
  const std::string text =
      output_of({"plan", "run.toml", "--dry-run", "--set", "parallel.ranks=4", "--set",
                 "parallel.pipeline=2", "--set", "train.global_batch=4"});
  for (const char* part : {"layout    4 ranks = tensor 1 x context 1 x data 2 x pipeline 2",
                           "pipeline  Et|tL, 1f1b of 1 microbatches", "planned   2 of 4 ranks",
                           "\nrank 0  F0 .  .  .  B0 -\nrank 1  .  F0 B0 -  .  .\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("[train]")));
  EXPECT_THAT(text, Not(HasSubstr("insert_events")));
}

TEST_F(PlanCommand, ShowsNoJobsWithoutPipeline) {
  const std::string text = output_of({"plan", "run.toml"});
  EXPECT_THAT(text, HasSubstr("layout    2 ranks"));
  EXPECT_THAT(text, HasSubstr("planned   1 of 2 ranks"));
  EXPECT_THAT(text, Not(HasSubstr("schedule  ")));
}

TEST_F(PlanCommand, ThousandsOfRanksTakeAsLongAsTheirStages) {
  write("large.toml",
        "[model]\npreset = \"llama-405b\"\n[train]\nsequence = 8192\nglobal_batch = 2048\n"
        "[parallel]\nranks = 16384\ntensor = 8\npipeline = 16\nvirtual_stages = 8\n"
        "schedule = \"interleaved\"\naccount_for_embedding = true\naccount_for_loss = true\n");
  const std::string text = output_of({"plan", "large.toml", "--dry-run"});
  EXPECT_THAT(text, HasSubstr("planned   16 of 16384 ranks, the first of each stage"));
  EXPECT_THAT(text, HasSubstr("\n 15360     15 "));
}

TEST_F(PlanCommand, SaysWhatAProcessOfTheRunPlans) {
  const std::vector<std::string> run = {"plan",  "run.toml",
                                        "--set", "parallel.ranks=4",
                                        "--set", "parallel.pipeline=2",
                                        "--set", "train.global_batch=4"};
  const auto with = [&](const std::vector<std::string>& options) {
    std::vector<std::string> words = run;
    words.insert(words.end(), options.begin(), options.end());
    return words;
  };
  const std::string text = output_of(with({"--rank", "3"}));
  EXPECT_THAT(text, HasSubstr("planned   3 of 4 ranks"));
  EXPECT_THAT(text, ContainsRegex("process   rank 3 plans 6 programs .* peak memory [0-9.]+ MiB"));
  EXPECT_THAT(output_of(with({"--all-ranks"})),
              HasSubstr("verified  4 ranks, of 2 kinds, fit together; "));
  EXPECT_THAT(error_of(with({"--rank", "4"}), 2), HasSubstr("--rank 4: the ranks are 0 to 3"));
}

TEST_F(PlanCommand, TensorBeyondAllLimitsIsRefused) {
  EXPECT_THAT(error_of({"plan", "run.toml", "--set", "train.microbatch=1048576", "--set",
                        "train.global_batch=2097152", "--set", "train.sequence=16777216"},
                       2),
              AllOf(HasSubstr("train.microbatch = 1048576"), HasSubstr("train.sequence = 16777216"),
                    HasSubstr("the limit is")));
}

TEST_F(PlanCommand, SaysWhetherItFitsADevice) {
  EXPECT_THAT(output_of({"plan", "run.toml"}), Not(HasSubstr("\nfits ")));
  EXPECT_THAT(output_of({"plan", "run.toml", "--device-memory", "4GiB"}),
              AllOf(HasSubstr("\nfits      "),
                    HasSubstr(" of 4.00 GiB in a GPU of that size: rank 0, weights ")));
  EXPECT_THAT(output_of({"plan", "run.toml", "--dry-run", "--device-memory", "h100"}),
              HasSubstr(" of 79.0 GiB in one NVIDIA H100 SXM: rank 0, weights "));
}

TEST_F(PlanCommand, RefusesADeviceThatIsTooSmallWithTheNearestSetting) {
  // Most of it is activations, which norms that are made again make fewer.
  const auto with = [](const std::string& size) {
    return Words{"plan",
                 "run.toml",
                 "--dry-run",
                 "--device-memory",
                 size,
                 "--set",
                 "train.sequence=512",
                 "--set",
                 "train.microbatch=64",
                 "--set",
                 "train.global_batch=128",
                 "--set",
                 "train.dtype=bfloat16",
                 "--set",
                 "overlap.comm_engine=copy"};
  };
  const ChildResult result = braid(with("800MiB"));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, HasSubstr("\ndoes not fit: rank 0 needs "));
  EXPECT_THAT(error_of(with("800MiB"), 2),
              AllOf(HasSubstr(" of GPU memory, a GPU of that size has 800 MiB free: weights "),
                    HasSubstr("; nearest valid setting: ")));
  EXPECT_THAT(error_of(with("100MB"), 2), HasSubstr(" take the most: lower "));
}

TEST_F(PlanCommand, DeviceMemoryIsASizeOrAGpu) {
  for (const char* text : {"80", "h1000", "cpu", "-1GiB"}) {
    EXPECT_THAT(error_of({"plan", "run.toml", "--device-memory=" + std::string(text)}, 2),
                AllOf(HasSubstr("--device-memory = \"" + std::string(text) + "\""),
                      HasSubstr("80GiB or 80GB, or a GPU out of a100, a100-40, a100-pcie, b200")))
        << text;
  }
}

TEST_F(PlanCommand, ChoosesRecomputeThatFitsTheDevice) {
  write(
      "large.toml",
      "[model]\npreset = \"llama-1b\"\n[train]\nsequence = 8192\nmicrobatch = 4\nglobal_batch = 4\n"
      "dtype = \"bfloat16\"\n[memory]\nrecompute = \"auto\"\n");
  const std::string text = output_of({"plan", "large.toml", "--device-memory", "64GiB"});
  EXPECT_THAT(text, ContainsRegex("recompute [a-z]+ in [0-9]+ of 16 layers: [0-9.]+ GiB of 64.0 "
                                  "GiB, would be [0-9.]+ GiB without\n"));
  EXPECT_THAT(text, HasSubstr("\nfits      "));
  EXPECT_THAT(output_of({"plan", "large.toml"}),
              HasSubstr("recompute auto: the memory of a device is not known here"));
}

TEST_F(PlanCommand, CostOfADeviceComparesItsMemory) {
  write("large.toml", "[model]\npreset = \"llama-8b\"\n[train]\ndtype = \"bfloat16\"\n");
  EXPECT_THAT(output_of({"plan", "large.toml", "--dry-run", "--cost", "h100"}),
              HasSubstr("\ndoes not fit: rank 0 needs "));
}

TEST_F(PlanCommand, PassesCanBeDisabledByName) {
  const std::string whole = output_of({"plan", "run.toml", "--program"});
  EXPECT_NE(output_of({"plan", "run.toml", "--program", "--set",
                       "overlap.disable_passes=overlap_grad_reduce"}),
            whole);
  EXPECT_THAT(output_of({"plan", "run.toml", "--set", "overlap.disable_passes=assign_streams"}),
              HasSubstr("skipped: disabled"));
}

TEST_F(PlanCommand, SaysWhatBraidGainsOverAStack) {
  const Words plan{"plan", "run.toml", "--dry-run"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), plan.begin(), plan.end());
    return more;
  };
  EXPECT_THAT(output_of(with({"--cost", "h100x2", "--stack", "eager"})),
              AllOf(HasSubstr("\nrange    "), HasSubstr("\nstack    eager: "),
                    HasSubstr("\nbraid    "), HasSubstr("% shorter than under eager\n")));
  EXPECT_THAT(error_of(with({"--stack", "eager"}), 2), HasSubstr("--cost"));
}

}  // namespace
}  // namespace braid
