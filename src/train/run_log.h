#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/choices.h"
#include "report/metrics_file.h"
#include "report/records.h"

namespace braid {

struct RunLogOptions {
  std::string folder;  ///< the run folder, which must exist
  bool tensorboard = true;
  bool progress_bar = false;  ///< redraws one line on `print`'s terminal
  int64_t interval = 10;  ///< steps between log lines; the first and the last step always have one
  /// First step of this process. If the folder has a metrics.jsonl, its lines of this and later
  /// steps are dropped, all lines if it is 1. A line is printed about those that are damaged.
  int64_t first_step = 1;
  int64_t num_steps = 1;  ///< last step of the run
  int64_t global_batch = 1;
  LogFormat format = LogFormat::kMegatron;
  std::string prometheus = {};  ///< file for the newest figures (prometheus.h); empty: none
  /// Receives finished lines and redraws of the bar, "\n" and "\r" included.
  std::function<void(std::string_view)> print;
  std::function<int64_t()> now_ns;  ///< Unix time; default: the system's clock
  std::function<int()> columns;     ///< width of the terminal; default: that of standard output
};

/// Writes metrics.jsonl (one object per step, evaluation, rerun, place of FP8 products or layer of
/// experts, flushed at once), TensorBoard events (loss, learning-rate, grad-norm,
/// tokens-per-second, valid-loss, expert-load),
/// log lines and the progress bar of one run. Throws DataError if a file cannot be
/// written. Not thread-safe.
class RunLog {
 public:
  explicit RunLog(RunLogOptions options);
  /// Removes the progress bar, also for an exception, whose message then has a line of its own.
  ~RunLog();

  void step(const StepRecord& record);
  void evaluation(const EvalRecord& record);
  /// Prints nothing.
  void fp8(const std::vector<Fp8Record>& records);
  /// Prints nothing. The next log line has the worst load of the last records.
  void experts(const std::vector<ExpertRecord>& records);
  /// Prints nothing.
  void rerun(const RerunRecord& record);
  /// Prints a separate line above the progress bar; "\n" is added.
  void message(std::string_view line);
  /// Makes metrics.jsonl durable. Before each checkpoint: a run that resumes from it, after a loss
  /// of power as well, then has the measurements of all its steps.
  void sync();
  /// Removes the progress bar. May be called more than once.
  void finish();

  /// All records of the run, including those of earlier processes, for the report.
  const Metrics& metrics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
