#include <gmock/gmock.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "cli/cli_fixture.h"
#include "report/metrics_file.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// After what time, in s, a silent rank is missed.
const std::string kPatienceOfRanks = kSanitized ? "15" : "4";

/// Runs of which each rank is a process, on the CPU.
class Processes : public Cli {
 protected:
  Processes() { write_run(); }

  Words per_rank(Words settings, const Words& options = {}) const {
    settings.emplace_back("runtime.processes=per_rank");
    return train(settings, options);
  }

  std::vector<double> losses(const std::string& folder) const {
    std::vector<double> found;
    const Metrics metrics = read_metrics(path(folder + "/metrics.jsonl"));
    for (const StepRecord& step : metrics.steps) {
      found.push_back(step.loss);
      found.push_back(step.grad_norm);
    }
    for (const EvalRecord& evaluation : metrics.evaluations) {
      found.push_back(evaluation.loss);
    }
    return found;
  }
};

struct Layout {
  const char* name;
  std::vector<std::string> settings;
};

class ProcessLayouts : public Processes, public testing::WithParamInterface<Layout> {};

// The same run, bit by bit, in one process and in several; and one goes on where the other stopped.
TEST_P(ProcessLayouts, AreTheSameRunInOneProcess) {
  const auto in = [&](const std::string& folder, const Words& options = {}, bool several = true) {
    Words settings = GetParam().settings;
    settings.insert(settings.end(), {"logging.run_folder=" + folder, "checkpoint.interval=3",
                                     "logging.trace_steps=2", "checkpoint.keep=0"});
    return output_of(several ? per_rank(settings, options) : train(settings, options));
  };
  in("one", {}, false);
  const std::string out = in("several");
  EXPECT_EQ(losses("several"), losses("one"));
  EXPECT_EQ(tensors_of("several/checkpoints/step_00000006"),
            tensors_of("one/checkpoints/step_00000006"));
  EXPECT_THAT(out, AllOf(HasSubstr("finished after step 6"), HasSubstr("traced step"),
                         HasSubstr("held-out loss")));
  EXPECT_TRUE(exists("several/trace.json"));

  in("across", {"--stop-after", "4"}, false);
  EXPECT_THAT(in("across"), HasSubstr("after step 4"));
  EXPECT_EQ(losses("across"), losses("one"));
  EXPECT_EQ(tensors_of("across/checkpoints/step_00000006"),
            tensors_of("one/checkpoints/step_00000006"));
  in("back", {"--stop-after", "4"});
  in("back", {}, false);
  EXPECT_EQ(tensors_of("back/checkpoints/step_00000006"),
            tensors_of("one/checkpoints/step_00000006"));
}

INSTANTIATE_TEST_SUITE_P(
    Four, ProcessLayouts,
    testing::ValuesIn(thinned<Layout>(
        {Layout{"Data", {"parallel.ranks=4"}},
         Layout{"ShardedParameters", {"parallel.ranks=4", "parallel.shard=parameters"}},
         Layout{"TensorAndPipeline",
                {"parallel.ranks=4", "parallel.tensor=2", "parallel.pipeline=2"}},
         Layout{"StepsThatRunAgainForMoreRoom",
                {"parallel.ranks=4", "parallel.pipeline=2", "parallel.expert=2", "model.experts=4",
                 "model.experts_per_token=2", "model.expert_ffn=8", "moe.capacity=0.4"}}},
        3)),
    [](const auto& one) { return std::string(one.param.name); });

TEST_F(Processes, RecordWhatFp8LosesOnAllOfThem) {
  const auto records = [&](const std::string& folder, bool several) {
    const Words settings{"logging.run_folder=" + folder,
                         "model.width=128",
                         "model.ffn=128",
                         "train.sequence=64",
                         "train.steps=2",
                         "train.fp8=block",
                         "train.fp8_watch=2",
                         "parallel.pipeline=2"};
    output_of(several ? per_rank(settings) : train(settings));
    std::string lines;
    for (const Fp8Record& record : read_metrics(path(folder + "/metrics.jsonl")).fp8) {
      lines += metrics_line(record);
    }
    return lines;
  };
  const std::string one = records("one", false);
  EXPECT_THAT(one, AllOf(HasSubstr("layers.0.attention.qkv"), HasSubstr("layers.1.attention.qkv")));
  EXPECT_EQ(records("several", true), one);
  EXPECT_THAT(output_of({"report", "several"}), HasSubstr("\nfp8 of several\nplace "));
}

/// The process of a rank that `braid train` with this pid has started; 0 if there is none (yet).
pid_t process_of(pid_t launcher, int rank) {
  std::ifstream children("/proc/" + std::to_string(launcher) + "/task/" + std::to_string(launcher) +
                         "/children");
  for (pid_t pid = 0; children >> pid;) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
    for (std::string entry; std::getline(file, entry, '\0');) {
      if (entry == "RANK=" + std::to_string(rank)) {
        return pid;
      }
    }
  }
  return 0;
}

/// Whether a process runs, stopped ones included.
bool is_there(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t state = text.rfind(") ");
  return state != std::string::npos && text[state + 2] != 'Z' && text[state + 2] != 'X';
}

struct Blow {
  const char* name;
  int rank;
  int signal;
};

class ProcessFailure : public Processes, public testing::WithParamInterface<Blow> {
 protected:
  Words run(const std::string& folder, const Words& options = {}) const {
    return per_rank(
        {"parallel.ranks=4", "parallel.tensor=2", "logging.run_folder=" + folder,
         "train.steps=20000", "checkpoint.interval=5", "logging.interval=1", "eval.interval=0",
         "optimizer.schedule=constant", "runtime.timeout_s=" + kPatienceOfRanks},
        options);
  }
  std::string newest_tensors(const std::string& folder) const {
    const auto latest = find_latest_checkpoint(path(folder + "/checkpoints"));
    EXPECT_TRUE(latest.has_value());
    return tensors_of(folder + "/checkpoints/" +
                      std::filesystem::path(*latest).filename().string());
  }
};

// A rank is killed or stopped at some moment: all end soon, the message names it, what was running
// where it was missed, and the run goes on from its last checkpoint as if nothing had happened.
TEST_P(ProcessFailure, EndsAllRanksSoonAndTheRunGoesOnBitwise) {
  using Clock = std::chrono::steady_clock;
  ChildProcess launcher(command(run("run")), in_folder());
  ASSERT_TRUE(launcher.read_until(has_steps(7), kPatience));
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 4; ++rank) {
    pids.push_back(process_of(launcher.pid(), rank));
    ASSERT_NE(pids.back(), 0) << rank;
  }
  const Clock::time_point begin = Clock::now();
  ASSERT_EQ(::kill(pids[static_cast<size_t>(GetParam().rank)], GetParam().signal), 0);
  const ChildResult result = launcher.wait(kPatience);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  EXPECT_NE(result.exit_code, 0);
  for (const pid_t pid : pids) {
    EXPECT_FALSE(is_there(pid));
  }
  const std::string rank = "rank " + std::to_string(GetParam().rank);
  EXPECT_THAT(result.err, AnyOf(AllOf(HasSubstr(rank + " ("), HasSubstr(") has ended")),
                                AllOf(HasSubstr(rank + " ("),
                                      HasSubstr("has not answered for " + kPatienceOfRanks)),
                                HasSubstr(rank + ": does not answer")));
  // A task of communication waited for it, or the hosts did, between two steps.
  EXPECT_THAT(result.err,
              AnyOf(AllOf(HasSubstr("task "), HasSubstr("in group ")), Not(HasSubstr("stream "))));

  const auto latest = find_latest_checkpoint(path("run/checkpoints"));
  ASSERT_TRUE(latest.has_value());
  const Words until{"--stop-after", std::to_string(LoadedCheckpoint(*latest).state().step + 3)};
  EXPECT_THAT(output_of(run("run", until)), HasSubstr("resume "));
  output_of(run("whole", until));
  EXPECT_EQ(newest_tensors("run"), newest_tensors("whole"));
}

INSTANTIATE_TEST_SUITE_P(
    Blows, ProcessFailure,
    testing::ValuesIn(thinned<Blow>({Blow{"Kill3", 3, SIGKILL}, Blow{"Kill0", 0, SIGKILL},
                                     Blow{"Stop2", 2, SIGSTOP}, Blow{"Stop0", 0, SIGSTOP}},
                                    4)),
    [](const auto& one) { return std::string(one.param.name); });

TEST_F(Processes, ARequestToStopReachesAllAtTheSameStep) {
  ChildProcess launcher(
      command(per_rank({"parallel.ranks=4", "train.steps=20000", "logging.interval=1",
                        "optimizer.schedule=constant", "eval.interval=0"})),
      in_folder());
  ASSERT_TRUE(launcher.read_until(
      [](const std::string& out) { return out.find("  loss ") != std::string::npos; }, kPatience));
  // Of one rank that is not the first, as a batch system may ask one node only.
  ASSERT_EQ(::kill(process_of(launcher.pid(), 2), SIGTERM), 0);
  const ChildResult result = launcher.wait(kPatience);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("stopped after step "));
  const auto latest = find_latest_checkpoint(path("runs/run/checkpoints"));
  ASSERT_TRUE(latest.has_value());
  EXPECT_EQ(LoadedCheckpoint(*latest).state().step,
            read_metrics(path("runs/run/metrics.jsonl")).steps.back().step);
}

TEST_F(Processes, EndWithTheOneThatStartedThem) {
  ChildProcess launcher(command(per_rank({"train.steps=20000", "logging.interval=1",
                                          "optimizer.schedule=constant", "eval.interval=0"})),
                        in_folder());
  ASSERT_TRUE(launcher.read_until(
      [](const std::string& out) { return out.find("  loss ") != std::string::npos; }, kPatience));
  const pid_t first = process_of(launcher.pid(), 0);
  const pid_t second = process_of(launcher.pid(), 1);
  launcher.send(SIGKILL);
  launcher.wait(kPatience);
  for (int look = 0; look < 500 && (is_there(first) || is_there(second)); ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(is_there(first));
  EXPECT_FALSE(is_there(second));
}

// Who opens a pipe that nobody writes to waits for ever.
TEST_F(Processes, DoNotWaitForAPipeInPlaceOfTheirCheckpoint) {
  output_of(train({}, {"--stop-after", "3"}));
  const std::string latest = path("runs/run/checkpoints/latest");
  std::filesystem::remove(latest);
  ASSERT_EQ(::mkfifo(latest.c_str(), 0600), 0);
  const std::string error = "latest': it is a device or a pipe, not a regular file";
  EXPECT_THAT(error_of(per_rank({}), 1), HasSubstr(error));
  EXPECT_THAT(error_of(train({}), 1), HasSubstr(error));
}

TEST_F(Processes, SayOnceWhatTheUserCanChange) {
  EXPECT_THAT(error_of(per_rank({"links.data_gb_per_s=1"}), 2),
              AllOf(HasSubstr("runtime.processes = \"per_rank\""), HasSubstr("section [links]")));
  EXPECT_THAT(error_of(per_rank({"data.train=missing.txt"}), 1), HasSubstr("missing.txt"));
  // Known to each when it plans; some only hear of it, and end before those who refuse.
  EXPECT_THAT(error_of(per_rank({"parallel.ranks=8", "model.layers=3", "parallel.pipeline=2",
                                 "parallel.pipeline_layout=even", "memory.recompute=auto"}),
                       2),
              HasSubstr("model.layers = 3: the layers do not divide over 2 stages"));
  EXPECT_THAT(error_of(train({}), 2,
                       {.environment = {"RANK=1", "WORLD_SIZE=8", "LOCAL_RANK=1", "MASTER_ADDR=box",
                                        "MASTER_PORT=1234"}}),
              AllOf(HasSubstr("torchrun started 8 processes"), HasSubstr("parallel.ranks = 2")));
}

/// Two processes started as torchrun or another launcher would, without one.
class Launched : public Processes {
 protected:
  std::vector<std::string> place(int rank) const {
    return {"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "LOCAL_RANK=" + std::to_string(rank),
            "MASTER_ADDR=localhost", "MASTER_PORT=" + std::to_string(port_)};
  }
  ChildOptions options(int rank) const {
    ChildOptions options;
    options.environment = place(rank);
    return in_folder(options);
  }

  const int port_ = 21000 + static_cast<int>(::getpid() % 8000);
};

TEST_F(Launched, AreOneRunWhoeverStartsThem) {
  ChildProcess second(command(train({})), options(1));
  ChildProcess first(command(train({})), options(0));
  const ChildResult of_first = first.wait(kPatience);
  const ChildResult of_second = second.wait(kPatience);
  EXPECT_EQ(of_first.exit_code, 0) << of_first.err;
  EXPECT_EQ(of_second.exit_code, 0) << of_second.err;
  EXPECT_THAT(of_first.out, HasSubstr("finished after step 6"));
  EXPECT_EQ(of_second.out, "");
  EXPECT_EQ(of_first.err + of_second.err, "");
  output_of(train({"logging.run_folder=one"}));
  EXPECT_EQ(losses("runs/run"), losses("one"));
}

TEST_F(Launched, AreRefusedWithDifferentConfigurations) {
  ChildProcess second(command(train({"train.seed=7"})), options(1));
  ChildProcess first(command(train({})), options(0));
  const ChildResult of_first = first.wait(kPatience);
  const ChildResult of_second = second.wait(kPatience);
  EXPECT_EQ(of_first.exit_code, 2);
  EXPECT_EQ(of_second.exit_code, 2);
  EXPECT_EQ(of_first.err,
            "braid: the configuration of rank 1 differs from that of rank 0: seed = 7, and rank 0: "
            "seed = 1234; give all processes the same run file and options\n");
  EXPECT_THAT(of_second.err, Not(HasSubstr("configuration")));
}

}  // namespace
}  // namespace braid
