#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "runtime/engine.h"
#include "train/rerun.h"
#include "train/spike_detector.h"

namespace braid {

/// Looks for signs that a device computed something wrong: copies of the state that differ, and
/// steps whose loss or gradient norm jumps. Finds reasons for the run to go back to its last
/// checkpoint, and says what came of it (train/rerun.h). All processes of a run make the same
/// calls.
class FaultWatch {
 public:
  /// All arguments must outlive this object. `print` gets lines for people.
  FaultWatch(const RuntimeConfig& config, Engine& engine, ProcessGroup& processes,
             std::function<void(const std::string&)> print);

  /// The run can go back to this checkpoint of the current state; empty: the initial weights.
  void set_start(int64_t step, std::string checkpoint);
  /// Adds the result of the next step.
  void add(int64_t step, const StepResult& result);

  /// What this process has seen since the last call, a digit; the greatest one of all processes
  /// goes to `agree`.
  char take_own();
  void agree(int64_t step, char greatest);
  /// Whether a boundary is needed now, to look for a reason to go back.
  bool needs_boundary() const;
  /// Whether steps run again, up to this one.
  bool ends_at(int64_t step) const { return rerun_.ends_at(step); }

  /// Called at a boundary after this step. `compares`: the copies are compared in any case. Throws
  /// DeviceError if copies differ and the run may not go back.
  std::optional<RerunCause> reason_to_go_back(int64_t step, bool compares);
  /// The run goes back to the start now. Returns a line for people.
  std::string begin(const RerunCause& cause, int64_t step);
  /// The steps ran again without a reason to go back. Returns a line for people.
  std::string end();

  /// Whether the run goes back at the next boundary if the loss of this step is not finite.
  bool may_go_back(int64_t step) const;
  /// Throws DeviceError if copies differ after this step.
  void check_copies(int64_t step);
  /// Rerun::progress.
  std::string progress(int64_t step) const { return rerun_.progress(step); }

 private:
  /// What a jump of the loss or the gradient norm is a reason for.
  enum class Spike : uint8_t { kNone, kCompares, kRunsAgain };

  Spike spike_of(const StepResult& result);
  bool compares_copies() const { return config_.check_replicas > 0; }
  RerunCause differing_copies(int64_t step);

  const RuntimeConfig& config_;
  Engine& engine_;
  ProcessGroup& processes_;
  std::function<void(const std::string&)> print_;
  Rerun rerun_;
  SpikeDetector spikes_;
  SpikeDetector spikes_at_start_;
  Spike own_spike_ = Spike::kNone;  // of this process, since `take_own`
  Spike spike_ = Spike::kNone;      // of any process, since the last boundary
  std::string finding_;             // about the first spike that is a reason to run steps again
  StepResult last_result_;
  int64_t last_equal_ = 0;             // last step after which copies were found equal; 0: none
  std::optional<int64_t> refused_at_;  // the start to which the run did not go back
};

}  // namespace braid
