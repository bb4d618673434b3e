#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>

#include "base/errors.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "cli/validators.h"
#include "config/load.h"
#include "runtime/trainer.h"

namespace braid {
namespace {

// The one thing that a signal handler may touch; there is one process, so there is one.
std::atomic<bool> stop_signal{false};
static_assert(std::atomic<bool>::is_always_lock_free);

/// From here on SIGTERM, SIGINT and SIGHUP ask for a checkpoint and a clean end; the second one
/// ends at once, as usual. Those that are ignored (nohup, a shell's background job) stay ignored. A
/// pipe whose reader has gone is no reason to end either: the run writes its log to files.
void install_stop_signals() {
  stop_signal = false;
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) {
      struct sigaction action {};
      action.sa_handler = [](int) { stop_signal = true; };
      action.sa_flags = static_cast<int>(SA_RESETHAND);
      sigaction(number, &action, nullptr);
    }
  }
  std::signal(SIGPIPE, SIG_IGN);
}

/// Prints as long as somebody can read it; after the first failure it says so once, on stderr.
class RunOutput {
 public:
  explicit RunOutput(const Console& console) : console_(console) {}

  void print(std::string_view text) {
    if (lost_) {
      return;
    }
    try {
      console_.print(text);
    } catch (const DataError& error) {
      lost_ = true;
      fmt::print(stderr, "braid: {}; the run goes on and writes metrics.jsonl\n", error.what());
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
  if (summary.unigram_entropy > 0) {
    text += fmt::format("held-out loss {:.4f} -> {:.4f} nats per token (unigram entropy {:.4f})\n",
                        summary.first_eval_loss, summary.last_eval_loss, summary.unigram_entropy);
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

}  // namespace

void add_train_command(CLI::App& app, const Console& console) {
  struct Arguments {
    ConfigArguments config;
    int64_t stop_after = 0;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("train", "Train a model as a run file says; continue where it stopped");
  add_config_arguments(*command, arguments->config);
  command
      ->add_option("--stop-after", arguments->stop_after,
                   "Save and end after this step, counted from the start of the run")
      ->type_name("STEP")
      ->check(at_least(1));
  command->footer(
      "Prints the resolved configuration, the memory plan and one line per logging.interval; "
      "writes metrics.jsonl,\n"
      "TensorBoard events, checkpoints, trace.json (for ui.perfetto.dev), report.html and its "
      "data, "
      "report.json, into\n"
      "logging.run_folder.\n"
      "SIGTERM, SIGHUP or Ctrl-C saves a checkpoint and ends; starting again continues bit for "
      "bit.\n\n"
      "  braid train examples/tiny_cpu.toml --set train.steps=100 --set "
      "optimizer.learning_rate=1e-3");
  command->callback([arguments, &console] {
    install_stop_signals();
    RunOutput output(console);
    TrainerOptions options;
    options.print = [&output](std::string_view text) { output.print(text); };
    options.terminal = console.is_terminal();
    options.stop_requested = [] { return stop_signal.load(); };
    if (arguments->stop_after > 0) {
      options.stop_after_step = arguments->stop_after;
    }
    const TrainingSummary summary =
        train(load_config(arguments->config.path, arguments->config.overrides), options);
    output.print(describe(summary));
  });
}

}  // namespace braid
