#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <memory>

#include "base/errors.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "config/load.h"
#include "runtime/trainer.h"

namespace braid {
namespace {

// The one thing that a signal handler may touch; there is one process, so there is one.
std::atomic<bool> stop_signal{false};
static_assert(std::atomic<bool>::is_always_lock_free);

/// While it lives, SIGTERM and SIGINT ask for a checkpoint and a clean end; a second SIGINT ends at
/// once, as usual.
class StopSignals {
 public:
  StopSignals() {
    stop_signal = false;
    struct sigaction action {};
    action.sa_handler = [](int) { stop_signal = true; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &old_int_);
    sigaction(SIGTERM, &action, &old_term_);
  }
  ~StopSignals() {
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  struct sigaction old_int_ {};
  struct sigaction old_term_ {};
};

std::string describe(const TrainingSummary& summary) {
  std::string text =
      fmt::format("{} after step {}; {} tokens/s\n", summary.stopped_early ? "stopped" : "finished",
                  summary.last_step, format_count(static_cast<int64_t>(summary.tokens_per_s)));
  if (summary.unigram_entropy > 0) {
    text += fmt::format("held-out loss {:.4f} -> {:.4f} nats per token (unigram entropy {:.4f})\n",
                        summary.first_eval_loss, summary.last_eval_loss, summary.unigram_entropy);
  }
  text += fmt::format("run folder {}\n", summary.run_folder);
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
                   "Save and end after this step, as if asked to by SIGTERM")
      ->check(CLI::PositiveNumber);
  command->footer(
      "Prints the resolved configuration, the memory plan and one line per logging.interval; "
      "writes metrics.jsonl,\n"
      "TensorBoard events, checkpoints, trace.json (for ui.perfetto.dev) and report.html into "
      "logging.run_folder.\n"
      "SIGTERM or Ctrl-C saves a checkpoint and ends; starting again continues bit for bit.\n\n"
      "  braid train examples/tiny_cpu.toml --set train.steps=100 --set "
      "optimizer.learning_rate=1e-3");
  command->callback([arguments, &console] {
    const StopSignals signals;
    TrainerOptions options;
    options.print = [&console](std::string_view text) { console.print(text); };
    options.terminal = console.is_terminal();
    options.stop_requested = [] { return stop_signal.load(); };
    if (arguments->stop_after > 0) {
      options.stop_after_step = arguments->stop_after;
    }
    const TrainingSummary summary =
        train(load_config(arguments->config.path, arguments->config.overrides), options);
    console.print(describe(summary));
  });
}

}  // namespace braid
