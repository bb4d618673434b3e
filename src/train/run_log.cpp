#include "train/run_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "runtime/progress_bar.h"
#include "train/append_file.h"
#include "train/expert_watch.h"
#include "train/log_line.h"
#include "train/prometheus.h"
#include "train/tensorboard.h"

namespace braid {
namespace {

int64_t system_time_ns() {
  using std::chrono::nanoseconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<nanoseconds>(now).count();
}

RunLogOptions with_defaults(RunLogOptions options) {
  check(options.first_step >= 1 && options.interval >= 1,
        "run log with first step {} and interval {}", options.first_step, options.interval);
  if (!options.print) {
    options.print = [](std::string_view) {};
  }
  if (!options.now_ns) {
    options.now_ns = system_time_ns;
  }
  if (!options.columns) {
    options.columns = terminal_columns;
  }
  return options;
}

std::string metrics_path(const RunLogOptions& options) {
  return options.folder + "/metrics.jsonl";
}

/// The counters after the last step of earlier processes.
LogInterval interval_after(const Metrics& metrics) {
  if (metrics.steps.empty()) {
    return {0, 0};
  }
  return {metrics.steps.back().skipped_steps, metrics.steps.back().nan_steps};
}

}  // namespace

struct RunLog::State {
  explicit State(RunLogOptions options_in)
      : options(with_defaults(std::move(options_in))),
        metrics(keep_metrics_before(metrics_path(options), options.first_step)),
        file(metrics_path(options), AppendFile::Existing::kAppend),
        interval(interval_after(metrics)) {
    if (options.tensorboard) {
      const int64_t start = options.first_step == 1 ? 0 : options.first_step;
      tensorboard.emplace(options.folder, now_s(), start);
    }
    if (options.progress_bar) {
      bar.emplace(ProgressBarOptions{options.print, options.columns, options.now_ns});
    }
    progress.num_steps = options.num_steps;
    progress.step = options.first_step - 1;
    if (const std::string note = damage_note(metrics); !note.empty()) {
      print(note);
    }
  }

  double now_s() const { return static_cast<double>(options.now_ns()) * 1e-9; }

  void print(const std::string& line) {
    if (bar) {
      bar->print_above(line + "\n");
    } else {
      options.print(line + "\n");
    }
  }

  void write_scalars(const StepRecord& record) {
    if (tensorboard) {
      const double time_s = now_s();
      tensorboard->scalar(time_s, record.step, "loss", record.loss);
      for (size_t i = 0; i < record.mtp_losses.size(); ++i) {
        tensorboard->scalar(time_s, record.step, fmt::format("mtp-{}-loss", i + 1),
                            record.mtp_losses[i]);
      }
      if (record.z_loss) {
        tensorboard->scalar(time_s, record.step, "z-loss", *record.z_loss);
      }
      if (record.preference) {
        const PreferenceRecord& pairs = *record.preference;
        tensorboard->scalar(time_s, record.step, "rewards/chosen", pairs.chosen_reward);
        tensorboard->scalar(time_s, record.step, "rewards/rejected", pairs.rejected_reward);
        tensorboard->scalar(time_s, record.step, "rewards/margins", pairs.margin());
        tensorboard->scalar(time_s, record.step, "rewards/accuracies", pairs.accuracy);
        tensorboard->scalar(time_s, record.step, "logps/chosen", pairs.chosen_logp);
        tensorboard->scalar(time_s, record.step, "logps/rejected", pairs.rejected_logp);
      }
      tensorboard->scalar(time_s, record.step, "learning-rate", record.learning_rate);
      tensorboard->scalar(time_s, record.step, "grad-norm", record.grad_norm);
      tensorboard->scalar(time_s, record.step, "tokens-per-second", record.tokens_per_s);
    }
  }

  /// Once, above the first line.
  void print_loss_note(bool pairs) {
    if (options.format == LogFormat::kShort && !std::exchange(has_noted_loss, true)) {
      print(loss_note(options.interval, pairs));
    }
  }

  void write_prometheus(const StepRecord& record) {
    if (options.prometheus.empty()) {
      return;
    }
    const std::optional<EvalRecord> evaluation =
        metrics.evaluations.empty() ? std::nullopt : std::optional(metrics.evaluations.back());
    const std::string run = std::filesystem::path(options.folder).filename().string();
    write_file_atomically(options.prometheus, prometheus_text(run, record, evaluation));
  }

  bool is_logged(int64_t step) const {
    return step % options.interval == 0 || step == options.first_step || step == options.num_steps;
  }

  /// Evaluations and checkpoints take time, too, so it uses the wall clock once there are two
  /// steps.
  double seconds_left(const StepRecord& record) {
    const int64_t now_ns = options.now_ns();
    double step_s = record.step_ms / 1e3;
    if (first_step_end_ns) {
      const int64_t steps = std::max<int64_t>(record.step - options.first_step, 1);
      step_s = static_cast<double>(now_ns - *first_step_end_ns) * 1e-9 / static_cast<double>(steps);
    } else {
      first_step_end_ns = now_ns;
    }
    return step_s * static_cast<double>(options.num_steps - record.step);
  }

  void update_bar(const StepRecord& record) {
    if (!bar) {
      return;
    }
    // An average over about the last ten steps, because single steps vary.
    constexpr double kWeight = 0.2;
    progress.tokens_per_s += progress.tokens_per_s < 0
                                 ? record.tokens_per_s - progress.tokens_per_s
                                 : kWeight * (record.tokens_per_s - progress.tokens_per_s);
    progress.step = record.step;
    progress.loss = record.loss;
    progress.seconds_left = seconds_left(record);
    bar->update(progress);
  }

  RunLogOptions options;
  Metrics metrics;
  AppendFile file;
  LogInterval interval;
  std::optional<TensorBoardFile> tensorboard;
  std::optional<ProgressBar> bar;
  ProgressState progress;
  std::optional<int64_t> first_step_end_ns;
  bool has_noted_loss = false;
};

RunLog::RunLog(RunLogOptions options) : state_(std::make_unique<State>(std::move(options))) {}

RunLog::~RunLog() {
  try {
    finish();
  } catch (const std::exception&) {  // the terminal is lost, and with it the bar
  }
}

void RunLog::step(const StepRecord& record) {
  State& state = *state_;
  state.metrics.steps.push_back(record);
  state.file.append(metrics_line(record));
  state.write_scalars(record);
  state.interval.add(record);
  if (state.is_logged(record.step)) {
    const LogInterval::RunSize run{state.options.num_steps, state.options.global_batch};
    state.print_loss_note(record.preference.has_value());
    state.print(state.interval.take_line(state.options.now_ns(), run, state.options.format));
    state.write_prometheus(record);
  }
  state.update_bar(record);
}

void RunLog::evaluation(const EvalRecord& record) {
  State& state = *state_;
  state.metrics.evaluations.push_back(record);
  state.file.append(metrics_line(record));
  if (state.tensorboard) {
    state.tensorboard->scalar(state.now_s(), record.step, "valid-loss", record.loss);
  }
  state.progress.valid_loss = record.loss;
  state.print(evaluation_line(record, state.options.format));
}

void RunLog::fp8(const std::vector<Fp8Record>& records) {
  std::string lines;
  for (const Fp8Record& record : records) {
    state_->metrics.fp8.push_back(record);
    lines += metrics_line(record);
  }
  state_->file.append(lines);
}

void RunLog::experts(const std::vector<ExpertRecord>& records) {
  if (records.empty()) {
    return;
  }
  State& state = *state_;
  std::string lines;
  for (const ExpertRecord& record : records) {
    state.metrics.experts.push_back(record);
    lines += metrics_line(record);
  }
  state.file.append(lines);
  const double worst = worst_load(records);
  state.interval.set_expert_load(worst);
  if (const std::optional<WorstRoom> room = worst_room(records)) {
    state.interval.set_room(room->used, room->dropped_share);
  }
  if (state.tensorboard) {
    state.tensorboard->scalar(state.now_s(), records.front().step, "expert-load", worst);
  }
}

void RunLog::rerun(const RerunRecord& record) {
  state_->metrics.reruns.push_back(record);
  state_->file.append(metrics_line(record));
}

void RunLog::message(std::string_view line) {
  state_->print(std::string(line));
}

void RunLog::sync() {
  state_->file.sync();
}

void RunLog::finish() {
  if (state_->bar) {
    state_->bar->erase();
  }
}

const Metrics& RunLog::metrics() const {
  return state_->metrics;
}

}  // namespace braid
