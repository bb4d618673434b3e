#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/errors.h"
#include "base/failure_note.h"
#include "base/file_operation.h"
#include "base/text.h"
#include "cli/app.h"
#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "cli/stop_signals.h"
#include "cli/validators.h"
#include "comm/process_group.h"
#include "config/load.h"
#include "launch/launch.h"
#include "launch/local_launch.h"
#include "state/resumed_model.h"
#include "train/trainer.h"

namespace braid {
namespace {

// All ranks end within runtime.timeout_s and 5 s, and a failure is noticed within moments. It is
// longer than what ranks need to say where they were: 2 s for a CPU's running tasks
// (stuck_timeout_ns), 2 s for a GPU to stand still and 2 s to drain it.
constexpr std::chrono::milliseconds kEndPatience{4500};
// Of a process with a frozen file, which has nothing else to say.
constexpr std::chrono::milliseconds kFrozenPatience{500};
constexpr unsigned kPrintPatienceS = 2;

/// Prints until the output fails; then reports the failure once, on stderr.
class RunOutput {
 public:
  explicit RunOutput(const Console& console) : console_(console) {}

  void print(std::string_view text) {
    if (lost_) {
      return;
    }
    try {
      console_.print_or_redraw(text);
    } catch (const DataError& error) {
      lost_ = true;
      print_error(fmt::format("{}; the run continues and writes metrics.jsonl", error.what()));
    }
  }

 private:
  const Console& console_;
  bool lost_ = false;
};

std::string describe(const TrainingSummary& summary) {
  const bool idle = summary.tokens_per_s == 0;  // this process ran no step
  std::string text = fmt::format(
      "{} after step {}{}\n", summary.stopped_early ? "stopped" : "finished", summary.last_step,
      idle
          ? "; nothing was left to do"
          : fmt::format("; {} tokens/s", format_count(static_cast<int64_t>(summary.tokens_per_s))));
  if (summary.first_eval_loss && summary.last_eval_loss) {
    text += fmt::format("held-out loss {:.4f} -> {:.4f}{}{}\n", *summary.first_eval_loss,
                        *summary.last_eval_loss,
                        summary.loss_of_pairs ? " per pair" : " nats per token",
                        summary.unigram_entropy > 0
                            ? fmt::format(" (unigram entropy {:.4f})", summary.unigram_entropy)
                            : "");
  }
  if (!summary.traced_step.empty()) {
    text += fmt::format("traced {}\n", summary.traced_step);
  }
  for (const std::string& sentence : summary.communication) {
    text += "overlap " + sentence + "\n";
  }
  text += fmt::format("run folder {}\nreport {}\n", summary.run_folder, summary.report);
  if (!summary.checkpoint.empty()) {
    text += fmt::format("checkpoint {}\n", summary.checkpoint);
  }
  return text;
}

/// Starts a process per rank and waits for them. They print. On one host, a process notices at once
/// that another one has ended, so one that goes on after kEndPatience is stopped.
void start_processes(const RunConfig& config) {
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  constexpr int64_t kStopPatienceS = 5;
  const int status = run_processes({.num_processes = static_cast<int>(config.parallel.ranks),
                                    .stop_requested = stop_requested,
                                    .patience_ns = kStopPatienceS * kNsPerSecond,
                                    .error = print_error});
  if (status != 0) {
    throw EndOfProgram{status};
  }
}

/// Ends this process if it does not end by itself after a failure, because a task, a library call
/// or an operation on a file is stuck.
class Watchdog {
 public:
  Watchdog(const ProcessGroup& processes, std::chrono::seconds timeout)
      : processes_(processes), timeout_(timeout), thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  bool ends_within(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return ended_; });
  }

  void watch() {
    std::optional<std::string> reason;
    while (!reason && !ends_within(std::chrono::milliseconds(200))) {
      reason = processes_.aborted();
    }
    if (reason && !ends_within(is_frozen() ? kFrozenPatience : kEndPatience)) {
      // If the output is a file on the storage that is frozen, the alarm ends this process.
      std::signal(SIGALRM, SIG_DFL);
      ::alarm(kPrintPatienceS);
      end_after_device_error(fmt::format("{} (this process did not end by itself)",
                                         noted_failure().value_or(*reason)));
    }
  }

  bool is_frozen() const {
    const std::optional<LongestFileOperation> longest = longest_file_operation();
    return longest && longest->duration > timeout_;
  }

  const ProcessGroup& processes_;
  const std::chrono::seconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;  // last: it uses the rest
};

/// Ends a process other than the first one without a message, because the first one knows its
/// errors. If the first one is gone, prints the reason.
[[noreturn]] void end_silently(const ProcessGroup& processes, const std::string& reason,
                               int exit_code) {
  if (processes.leader_is_lost()) {
    end_after_device_error(reason);
  }
  std::fflush(nullptr);
  std::_Exit(exit_code);  // as end_after_device_error: a task may be stuck
}

/// Trains in this process, which is one of these.
void train_as_one_of(ProcessGroup& processes, const RunConfig& config, TrainerOptions options) {
  options.processes = &processes;
  const Watchdog watchdog(processes, std::chrono::seconds(config.runtime.timeout_s));
  try {
    const TrainingSummary summary = train(config, options);
    if (processes.leads()) {
      options.print(describe(summary));
    }
  } catch (const std::exception& error) {
    if (processes.leads()) {
      throw;
    }
    const bool is_users = dynamic_cast<const ConfigError*>(&error) != nullptr;
    end_silently(processes, error.what(), is_users ? 2 : 1);
  }
}

/// Trains as one of the processes of a run.
void train_one_process(const Launch& launch, const RunConfig& config, TrainerOptions options) {
  end_with_parent(launch);
  check_launch(launch, config);
  const std::unique_ptr<ProcessGroup> processes = connect_processes(launch, config);
  options.local_process = launch.local_process;
  // Open MPI gives its processes a terminal, even if it writes their output elsewhere.
  options.terminal = options.terminal && launch.launcher != "mpirun";
  train_as_one_of(*processes, config, std::move(options));
}

}  // namespace

void add_train_command(CLI::App& app, const Console& console) {
  struct TrainArguments {
    ConfigArguments config;
    int64_t stop_after = 0;
    std::vector<std::string> allowed_changes;
  };
  const auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command =
      app.add_subcommand("train", "Train the model of a run file, or resume the run");
  add_config_arguments(*command, arguments->config);
  command
      ->add_option("--stop-after", arguments->stop_after,
                   "Save a checkpoint and stop after this step, counted from the start of the run")
      ->type_name("STEP")
      ->check(at_least(1));
  command
      ->add_option("--allow-change", arguments->allowed_changes,
                   "Resume although these keys have changed, which makes it another run: "
                   "\"data.train,data.split\". Each change is printed either way")
      ->type_name("KEYS")
      ->delimiter(',')
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->footer(
      "Prints what it trains and one line per logging.interval; writes the resolved configuration, "
      "plan.txt,\nmetrics.jsonl, TensorBoard events, checkpoints, trace.json (for "
      "ui.perfetto.dev), "
      "report.html and its data,\nreport.json, into logging.run_folder.\nSIGTERM, SIGHUP or Ctrl-C "
      "saves a checkpoint and ends the run; the same command resumes it, bit for bit.\n\nUnder "
      "torchrun, mpirun or srun it is one rank of the run. Ranks on several hosts need a secret: "
      "set\nBRAID_SECRET_FILE on all hosts to a file that only you can read (or BRAID_SECRET to "
      "the "
      "secret itself).\n\n  braid "
      "train examples/tiny_cpu.toml --set train.steps=100 --set optimizer.learning_rate=1e-3");
  command->callback([arguments, &console] {
    install_stop_signals();
    std::signal(SIGPIPE, SIG_IGN);  // the run writes its log to files, and goes on without output
    RunOutput output(console);
    TrainerOptions options;
    options.print = [&output](std::string_view text) { output.print(text); };
    options.terminal = console.is_terminal();
    options.stop_requested = stop_requested;
    if (arguments->stop_after > 0) {
      options.stop_after_step = arguments->stop_after;
    }
    options.allowed_changes = arguments->allowed_changes;
    options.run_file = std::filesystem::absolute(arguments->config.path).string();
    const RunConfig config =
        with_resumed_model(load_config(arguments->config.path, arguments->config.overrides));
    if (const std::optional<Launch> launch = find_launch()) {
      return train_one_process(*launch, config, options);
    }
    if (wants_processes(config)) {
      return start_processes(config);
    }
    train_as_one_of(*make_lone_process(), config, std::move(options));
  });
}

}  // namespace braid
