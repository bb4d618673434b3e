#include <CLI/CLI.hpp>
#include <csignal>
#include <filesystem>
#include <memory>

#include "base/errors.h"
#include "base/text.h"
#include "cli/app.h"
#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "cli/rank_processes.h"
#include "cli/stop_signals.h"
#include "cli/validators.h"
#include "config/load.h"
#include "state/resumed_model.h"
#include "train/trainer.h"

namespace braid {
namespace {

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
    run_on_ranks(config, [&](const RankProcess& process) {
      options.processes = &process.processes;
      options.local_process = process.local_process;
      options.terminal = options.terminal && process.may_have_terminal;
      const TrainingSummary summary = train(config, options);
      if (process.processes.leads()) {
        options.print(describe(summary));
      }
    });
  });
}

}  // namespace braid
