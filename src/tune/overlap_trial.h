#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/simulated_run.h"
#include "sim/cost_model.h"

namespace braid {

/// Figures of a simulated step with one setting of [overlap].
struct OverlapFigures {
  int64_t step_ns = 0;       ///< of the tasks and the host's part
  int64_t needed_bytes = 0;  ///< of the rank that needs most, as `needed_bytes`
  /// Fraction of the step with exposed communication, mean of all ranks.
  double exposed = 0;
  /// Fraction of the step in which the rank with the most compute computes. No order of tasks makes
  /// the step shorter than that.
  double most_compute = 0;
};

/// Result of one setting.
struct OverlapTrial {
  OverlapConfig overlap;
  OverlapFigures figures;  ///< empty if it was refused
  bool simulated = false;
  bool fits = false;    ///< the memory
  std::string why_not;  ///< empty if it fits
};

/// Order of candidates: those that fit, fastest first; then those that do not fit, smallest first;
/// then those that were refused. Among equal steps, the one with less memory is better.
bool is_better(const OverlapTrial& a, const OverlapTrial& b);

/// Device memory of the planned rank that needs most, on a device of `model`; on a GPU including
/// kernels and driver. If a quick plan exceeds `limit_bytes`, memory is planned again as for a run,
/// which is slower and needs slightly less.
int64_t needed_bytes(const RunPlan& plan, const CostModel& model,
                     std::optional<int64_t> limit_bytes);

/// The memory of the device of `model`; nullopt for CPUs, whose memory ranks share.
std::optional<int64_t> device_memory_bytes(const CostModel& model);

/// Simulates a run with one setting of [overlap] after the other, each once. Deterministic.
class OverlapTrials {
 public:
  struct Options {
    std::optional<int64_t> memory_bytes = {};  ///< limit of a rank; nullopt: none
    PlannedRanks planned = PlannedRanks::kOnePerStage;
    /// True: OverlapFigures::needed_bytes as for a run, not of a quick plan, which needs a little
    /// more.
    bool exact_memory = false;
    int num_threads = 0;  ///< 0: all of the machine; does not change results
    std::function<void(const OverlapTrial& trial)> on_trial = {};  ///< from the calling thread
  };

  /// `model` must outlive the trials.
  OverlapTrials(RunSpec run, const CostModel& model, Options options);

  /// The trials of these settings, in their order. References stay valid.
  std::vector<const OverlapTrial*> run(const std::vector<OverlapConfig>& settings);
  const OverlapTrial& run(const OverlapConfig& setting) { return *run(std::vector{setting})[0]; }

  const std::deque<OverlapTrial>& all() const { return trials_; }
  const RunSpec& spec() const { return run_; }
  /// The run with that setting.
  RunConfig with(const OverlapConfig& overlap) const;

 private:
  OverlapTrial simulate(const OverlapConfig& overlap) const;
  const OverlapTrial* find(const OverlapConfig& overlap) const;

  RunSpec run_;
  const CostModel& model_;
  Options options_;
  std::deque<OverlapTrial> trials_;
};

}  // namespace braid
