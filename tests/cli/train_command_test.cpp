#include "checkpoint/checkpoint.h"
#include "cli/cli_fixture.h"
#include "report/metrics_file.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

/// AddressSanitizer reserves more address space than a limit would leave.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kReservesAddresses = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kReservesAddresses = true;
#else
constexpr bool kReservesAddresses = false;
#endif
#else
constexpr bool kReservesAddresses = false;
#endif

class TrainCommand : public Cli {
 protected:
  TrainCommand() { write_run(); }

  std::string weights(const std::string& run, int64_t step) const {
    return tensors_of(run + "/checkpoints/" + name_of(step));
  }
  static std::string name_of(int64_t step) {
    const std::string digits = std::to_string(step);
    return "step_" + std::string(8 - digits.size(), '0') + digits;
  }
  static std::string in(const std::string& run) { return "logging.run_folder=" + run; }
};

TEST_F(TrainCommand, LeavesACompleteRunFolder) {
  const std::string text = output_of(train({}));
  for (const char* part :
       {"model    llama, ", "\nstep     ",
        "\nrun      runs/run (config.toml, plan.txt); set up in ",
        "\nloss: mean nats per token over the steps since the line before\n", "\nstep 6/6  loss ",
        "\nstep 6  held-out loss ", "\nfinished after step 6; ", "held-out loss ", "\ntraced step ",
        ": compute ", "run folder runs/run\nreport runs/run/report.html\n",
        "checkpoint runs/run/checkpoints/step_00000006\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(read("runs/run/plan.txt"), AllOf(HasSubstr("[optimizer]"), HasSubstr("\npeak ")));
  for (const char* file : {"config.toml", "metrics.jsonl", "trace.json", "report.html"}) {
    EXPECT_TRUE(exists(std::string("runs/run/") + file)) << file;
  }
  EXPECT_EQ(read_metrics(path("runs/run/metrics.jsonl")).steps.size(), 6u);
  EXPECT_EQ(text.find('\r'), std::string::npos) << "a progress bar without a terminal";
}

TEST_F(TrainCommand, PrintsThePlanAndTheLinesOfMegatronIfAsked) {
  const std::string text = output_of(train({"logging.format=megatron", "train.steps=2"}));
  for (const char* part : {"[optimizer]", "\npeak ", "\nsetup    ", "iteration        2/       2",
                           "\ntimeline step 2, cpu, ", "matrix products "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

// The second start takes its configuration from what the first one saved.
TEST_F(TrainCommand, SavedConfigurationRunsAgain) {
  output_of(train({in("first")}));
  output_of({"train", "first/config.toml", "--set", in("second"), "--set",
             "checkpoint.folder=second/checkpoints"});
  EXPECT_EQ(weights("second", 6), weights("first", 6));
}

TEST_F(TrainCommand, StopAfterAndResumeAreBitwise) {
  output_of(train({in("whole")}));
  EXPECT_THAT(output_of(train({in("parts")}, {"--stop-after", "2"})),
              HasSubstr("stopped after step 2; "));
  EXPECT_THAT(output_of(train({in("parts")}, {"--stop-after", "2"})),
              HasSubstr("stopped after step 2; nothing was left to do"));
  const std::string text = output_of(train({in("parts")}));
  EXPECT_THAT(text, HasSubstr("resume   parts/checkpoints/step_00000002 after step 2\n"));
  EXPECT_THAT(text, HasSubstr("finished after step 6; "));
  EXPECT_EQ(weights("parts", 6), weights("whole", 6));
  EXPECT_THAT(output_of(train({in("parts")})),
              HasSubstr("finished after step 6; nothing was left to do"));
}

// Two run files of one name share a run folder, and so the checkpoints.
TEST_F(TrainCommand, AnotherRunOfTheSameNameIsRefusedUnlessItsChangesAreNamed) {
  output_of(train({}, {"--stop-after", "2"}));
  write("other/run.toml", read("run.toml"));
  const Words other{"train", "other/run.toml", "--set", "train.seed=5", "--set", "model.width=64"};
  EXPECT_THAT(
      error_of(other, 2),
      AllOf(HasSubstr("the checkpoint runs/run/checkpoints/step_00000002 is of another run"),
            HasSubstr("model.width = 32 -> 64"), HasSubstr("--allow-change data.seed,"),
            HasSubstr("train.seed")));
  const Words named{"train",        "other/run.toml", "--set",
                    "train.seed=5", "--allow-change", "train.seed,data.seed"};
  EXPECT_THAT(output_of(named),
              AllOf(HasSubstr("changed  train.seed = 1234 -> 5\n"),
                    ContainsRegex("changed  run file: .*/run.toml -> .*/other/run.toml\n"),
                    HasSubstr("finished after step 6; ")));
  EXPECT_THAT(error_of(train({}, {"--allow-change", "train.sed"}), 2),
              HasSubstr("did you mean train.seed?"));
}

TEST_F(TrainCommand, LostOutputDoesNotEndTheRun) {
  const ChildResult full = braid(train({in("full")}), {.stdout_path = "/dev/full"});
  EXPECT_EQ(full.exit_code, 0);
  EXPECT_EQ(full.err,
            "braid: cannot write standard output: No space left on device; the run continues and "
            "writes metrics.jsonl\n");
  const ChildResult closed = braid(train({in("closed")}), {.close_stdout = true});
  EXPECT_EQ(closed.exit_code, 0);
  EXPECT_THAT(closed.err, HasSubstr("Bad file descriptor; the run continues"));
  // A closed stream's number must not go to a file of the run.
  EXPECT_EQ(weights("closed", 6), weights("full", 6));
  EXPECT_EQ(read_metrics(path("closed/metrics.jsonl")).steps.size(), 6u);
  ChildProcess pipe(command(train({in("pipe")})), in_folder());
  pipe.stop_reading();
  EXPECT_EQ(pipe.wait(kPatience).exit_code, 0);
  EXPECT_EQ(weights("pipe", 6), weights("full", 6));
}

TEST_F(TrainCommand, FullDiskKeepsTheLastCheckpoint) {
  output_of(train({}, {"--stop-after", "2"}));
  const std::string before = weights("runs/run", 2);
  // Enough for logs, too little for the weights.
  EXPECT_THAT(error_of(train({}), 1, {.max_file_bytes = 50000}), HasSubstr("File too large"));
  EXPECT_EQ(weights("runs/run", 2), before);
  EXPECT_EQ(find_latest_checkpoint(path("runs/run/checkpoints")),
            path("runs/run/checkpoints/step_00000002"));
  EXPECT_THAT(output_of(train({})), HasSubstr("finished after step 6; "));
}

TEST_F(TrainCommand, RunFolderThatCannotBeWrittenIsNamed) {
  EXPECT_THAT(error_of(train({in("corpus.txt/run")}), 1),
              HasSubstr("logging.run_folder = \"corpus.txt/run\""));
  EXPECT_THAT(error_of(train({in("/proc/run")}), 1), HasSubstr("logging.run_folder"));
}

TEST_F(TrainCommand, ReadOnlyRunFolderIsNamed) {
  namespace fs = std::filesystem;
  fs::permissions(folder_.path(), fs::perms(0755));
  fs::create_directories(path("locked"));
  fs::permissions(path("locked"), fs::perms(0555));
  const ChildOptions nobody{.as_nobody = true};
  if (braid({"--version"}, nobody).exit_code != 0) {
    GTEST_SKIP() << "only root may read the program";
  }
  EXPECT_THAT(error_of(train({in("locked")}), 1, nobody),
              AllOf(HasSubstr("locked"), HasSubstr("Permission denied")));
  EXPECT_THAT(error_of(train({in("locked/run")}), 1, nobody),
              AllOf(HasSubstr("logging.run_folder"), HasSubstr("Permission denied")));
}

TEST_F(TrainCommand, ModelBeyondAllMemoryIsRefusedBeforeItIsAllocated) {
  const std::string error = error_of(train({"model.preset=llama-405b", "model.layers=126",
                                            "model.width=16384", "model.heads=128"}),
                                     2);
  for (const char* part : {"2 ranks need ", " of memory, this machine has ", "optimizer state",
                           "lower train.sequence = 32", "parallel.ranks = 2"}) {
    EXPECT_THAT(error, HasSubstr(part));
  }
  EXPECT_FALSE(exists("runs/run/config.toml"));
  EXPECT_FALSE(exists("runs/run/data"));  // large ones take minutes
}

// Where the system refuses memory in spite of the check, that is one line too.
TEST_F(TrainCommand, MemoryThatTheSystemRefusesIsOneLine) {
  if (kReservesAddresses) {
    GTEST_SKIP() << "address space cannot be limited under AddressSanitizer";
  }
  const std::string error = error_of(train({"model.width=2048", "model.layers=8"}), 1,
                                     {.max_memory_bytes = int64_t{1} << 30});
  EXPECT_THAT(error, ::testing::AnyOf(HasSubstr("cannot allocate"), HasSubstr("out of memory")));
}

TEST_F(TrainCommand, RefusedRunLeavesTheConfigurationOfTheRun) {
  output_of(train({}, {"--stop-after", "2"}));
  const std::string before = read("runs/run/config.toml");
  EXPECT_THAT(error_of(train({"model.width=64"}), 2),
              HasSubstr("is of another run: model.width = 32 -> 64"));
  EXPECT_EQ(read("runs/run/config.toml"), before);
}

}  // namespace
}  // namespace braid
