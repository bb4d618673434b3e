#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "report/records.h"

namespace braid {

struct StepResult;

struct StepMeterOptions {
  int64_t global_batch = 1;     ///< sequences of a step
  int64_t tokens_per_step = 1;  ///< of all of them
  double flops_per_token = 0;
  int64_t num_ranks = 1;
  std::function<int64_t()> now_ns = {};  ///< counts from anywhere; default: a steady clock
};

/// Times and counts the training steps of a run: makes their records.
class StepMeter {
 public:
  explicit StepMeter(StepMeterOptions options);

  /// The last step of an earlier process: skipped and NaN steps count from the start of the run.
  void continue_from(const StepRecord& last);

  /// Steps may begin before those in front have ended; they end in the order of their begins.
  void begin(int64_t step, double learning_rate);
  /// Of the oldest step that has begun. It takes from the end of the one in front of it, or from
  /// its own begin if that is later, to its end: now, less `lateness_ns`.
  StepRecord end(const StepResult& result);

  /// Over the steps that ended here; 0 if none did.
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
