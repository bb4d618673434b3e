#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace braid {

/// What is known of one finished step.
struct StepRecord {
  int64_t step = 0;  ///< from 1
  double loss = 0;   ///< mean over the global batch, nats per token
  double learning_rate = 0;
  double grad_norm = 0;
  double step_ms = 0;
  double tokens_per_s = 0;         ///< over all ranks
  double tflops_per_s_per_rank = 0;  ///< model FLOPs
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  int64_t skipped_steps = 0;  ///< since the start of the run
  int64_t nan_steps = 0;
};

struct EvalRecord {
  int64_t step = 0;
  double loss = 0;
};

struct RunLogOptions {
  std::string folder;        ///< the run folder, which must exist
  bool tensorboard = true;
  bool progress_bar = false;  ///< redraws one line on `print`'s terminal
  int64_t interval = 10;      ///< steps between log lines; the first and the last step always have one
  int64_t first_step = 1;     ///< first step of this process: lines of later steps in an old metrics.jsonl are dropped
  int64_t num_steps = 1;
  int64_t global_batch = 1;
  std::function<void(std::string_view)> print;  ///< receives finished lines and redraws of the bar, "\n" and "\r" included
};

/// Writes metrics.jsonl (one object per step or evaluation, flushed at once), TensorBoard events, Megatron-style log lines
/// and the progress bar of one run. Throws DataError if a file cannot be written.
class RunLog {
 public:
  explicit RunLog(RunLogOptions options);
  ~RunLog();

  void step(const StepRecord& record);
  void evaluation(const EvalRecord& record);
  /// Prints a line of its own, above the progress bar.
  void message(std::string_view line);
  /// Removes the progress bar.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
