#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/records.h"

namespace braid {

/// Averages over the steps since the last log line, as in Megatron-LM's training_log: the loss over
/// the steps that were not skipped, time and throughput over all.
class LogInterval {
 public:
  /// The counters of skipped and NaN steps count from the start of the run; the arguments are their
  /// values before the first step of this process.
  LogInterval(int64_t skipped_steps, int64_t nan_steps);

  void add(const StepRecord& record);
  /// The most rows of an expert / mean, in the worst layer; the last call of an interval counts.
  void set_expert_load(double load) { expert_load_ = load; }
  /// Shares of the room for rows of experts that was used, and of the rows that were dropped, in
  /// the worst layers; the last call of an interval counts.
  void set_room(double used, double dropped_share) { room_ = {used, dropped_share}; }
  bool empty() const { return num_steps_ == 0; }

  struct RunSize {
    int64_t num_steps = 1;
    int64_t global_batch = 1;
  };
  /// Megatron-LM's log line, with its field names and widths, without "\n". "lm loss"
  /// and "mtp_1 loss", ..., those of multi-token prediction by depth, are left out if every step
  /// was skipped, "busiest expert" if no load was set, "room used" if no room was,
  /// "dropped rows" and "reruns" if there were none. The counters of skipped and NaN steps, and of
  /// reruns, are those of the interval. `time_ns`: Unix time, printed as local time. Begins the
  /// next interval.
  std::string take_line(int64_t time_ns, const RunSize& run);

 private:
  StepRecord last_;
  int64_t num_steps_ = 0;
  int64_t num_advanced_ = 0;
  int64_t skipped_before_ = 0;
  int64_t nan_before_ = 0;
  int64_t num_reruns_ = 0;
  double expert_load_ = 0;
  struct Room {
    double used = 0;
    double dropped_share = 0;
  };
  Room room_;
  double loss_sum_ = 0;
  std::vector<double> mtp_loss_sums_;  // by depth
  double ms_sum_ = 0;
  double tflops_sum_ = 0;  ///< sum of work, not of rates
};

/// Megatron-LM's line of an evaluation, without "\n": loss and perplexity (capped at e^20).
std::string evaluation_line(const EvalRecord& record);

}  // namespace braid
