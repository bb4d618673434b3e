#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "report/records.h"
#include "train/data_count.h"

namespace braid {

struct StepResult;

struct StepMeterOptions {
  int64_t global_batch = 1;     ///< sequences of a step
  int64_t tokens_per_step = 1;  ///< of all sequences
  DataCount start = {};         ///< before the steps to measure
  double flops_per_token = 0;
  int64_t num_ranks = 1;
  std::function<int64_t()> now_ns = {};  ///< any origin; default: a steady clock
};

/// Measures the training steps of a run, and makes their records.
class StepMeter {
 public:
  explicit StepMeter(StepMeterOptions options);

  /// Continues from the last step of an earlier process: skipped and NaN steps count from the start
  /// of the run.
  void continue_from(const StepRecord& last);

  /// Steps may begin before earlier ones have ended; they end in the order in which they began.
  void begin(int64_t step, double learning_rate);
  /// Ends the oldest step in flight. It lasts from the end of the previous step, or from its own
  /// begin if that is later, to its end: now, minus `lateness_ns`.
  StepRecord end(const StepResult& result);

  /// Over the steps that ended in this process; 0 if there are none.
  double median_tokens_per_s() const;

 private:
  struct BegunStep {
    int64_t step = 0;
    double learning_rate = 0;
    int64_t begin_ns = 0;
  };

  StepMeterOptions options_;
  std::deque<BegunStep> begun_;
  int64_t last_end_ns_ = 0;
  int64_t skipped_steps_ = 0;
  int64_t nan_steps_ = 0;
  std::vector<double> tokens_per_s_;  // by step
};

}  // namespace braid
