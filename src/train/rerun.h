#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine.h"

namespace braid {

/// Why steps are to run again.
struct RerunCause {
  std::string finding;             ///< "rank 1 holds other bits of head.output (weights) than ..."
  std::vector<size_t> ranks = {};  ///< whose copies of the state differ; empty: a spike

  bool of_copies() const { return !ranks.empty(); }
};

/// Decides whether a run goes back to its last checkpoint and runs the steps since then again, and
/// says what came of it. Such steps have the same bits unless a device failed. The trainer restores
/// the state and runs the steps. All processes of a run make the same calls.
///
/// A spike lets steps run again once after each checkpoint, copies that differ once more, and no
/// rank's copies twice, so that a run neither loops nor hides a device that fails again.
class Rerun {
 public:
  struct Options {
    int64_t most_steps = 0;     ///< that run again at once; 0: never
    bool has_same_bits = true;  ///< of a step that runs twice; without it, spikes do not count
  };
  explicit Rerun(const Options& options) : options_(options) {}

  /// The run can go back to this checkpoint of the state after `step`; empty: the initial weights.
  void set_start(int64_t step, std::string checkpoint);
  /// Adds the result of the next step.
  void add(int64_t step, const StepResult& result);

  /// The reason why the run does not go back after this step; empty if it may.
  std::string refusal(const RerunCause& cause, int64_t step) const;
  /// The run goes back after this step. Returns a line for people.
  std::string begin(RerunCause cause, int64_t step);

  bool is_running() const { return running_.has_value(); }
  /// Whether the steps that run again end with this one.
  bool ends_at(int64_t step) const { return running_ && running_->last_step == step; }
  /// The first of the steps that ran again with another loss or gradient norm in this process; 0 if
  /// there is none.
  int64_t first_difference() const { return first_difference_; }
  /// The steps ran again, and copies of the state are equal. `first_difference` is that of all
  /// processes. Returns a line for people.
  std::string end(int64_t first_difference);
  /// What an error says while steps run again: that they do, and whether their bits are the same.
  std::string progress(int64_t step) const;
  /// The error of a run that ends because copies differ after this step, one line.
  std::string failure(const RerunCause& cause, int64_t step) const;

  /// The step after which the run would go on.
  int64_t start() const { return start_; }

 private:
  struct Result {
    double loss = 0;
    double grad_norm = 0;
  };
  struct Running {
    RerunCause cause;
    int64_t last_step = 0;
  };

  std::string start_name() const;
  std::string why_not_again(const RerunCause& cause, int64_t step) const;
  /// "steps 5 to 6"
  std::string steps_until(int64_t step) const;

  Options options_;
  int64_t start_ = 0;
  std::string checkpoint_;
  std::vector<Result> results_;  // of the steps after the start, the first most_steps of them
  std::optional<Running> running_;
  int64_t first_difference_ = 0;
  bool ran_for_spike_ = false;        // since the start
  bool ran_for_copies_ = false;       // since the start
  std::map<size_t, int64_t> healed_;  // by rank: the step after which its copies differed
};

}  // namespace braid
