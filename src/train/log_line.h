#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/choices.h"
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
  /// The line of this format, of which the short one is
  ///
  ///   step  550/1000  loss 4.5338  grad 0.523  lr 3.00e-04  314 ms  6.43K tok/s
  ///
  /// with a second line, indented, for everything else that Megatron-LM's line may have: losses of
  /// multi-token prediction, mean squared log-sum-exp (z), loads of experts, reruns, skipped and
  /// NaN steps. Both are at most 80 columns wide up to a million steps and a few depths. The other
  /// is Megatron-LM's log line, with its field names and widths, without "\n". "lm loss" and "mtp_1
  /// loss", ..., those of multi-token prediction by depth, are left out if every step was skipped,
  /// "busiest expert" if no load was set, "room used" if no room was, "dropped rows" and "reruns"
  /// if there were none. The counters of skipped and NaN steps, and of reruns, are those of the
  /// interval. `time_ns`: Unix time, printed as local time. Begins the next interval.
  std::string take_line(int64_t time_ns, const RunSize& run,
                        LogFormat format = LogFormat::kMegatron);

 private:
  std::string megatron_line(int64_t time_ns, const RunSize& run) const;
  std::string short_line(const RunSize& run) const;
  /// What is not in every line, for the short one.
  std::string rare_figures() const;
  double mean_ms() const { return ms_sum_ / static_cast<double>(num_steps_); }

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
  std::vector<double> mtp_loss_sums_;               // by depth
  std::optional<double> z_loss_sum_;                // none: not computed, or every step was skipped
  std::optional<PreferenceRecord> preference_sum_;  // likewise
  double ms_sum_ = 0;
  double tflops_sum_ = 0;  ///< sum of work, not of rates
  double tokens_sum_ = 0;
};

/// What the loss of log lines is the mean of, for the short format, which prints it once. `pairs`:
/// with preference.loss.
std::string loss_note(int64_t interval, bool pairs = false);

/// The line of an evaluation in this format, without "\n": loss and perplexity (capped at e^20).
std::string evaluation_line(const EvalRecord& record, LogFormat format = LogFormat::kMegatron);

}  // namespace braid
