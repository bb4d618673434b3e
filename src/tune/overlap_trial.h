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

/// A simulated step with some setting of [overlap].
struct OverlapFigures {
  int64_t step_ns = 0;       ///< of the tasks and the host's part
  int64_t needed_bytes = 0;  ///< of the rank that needs most, as `needed_bytes`
  /// Part of the step with communication that nothing hides, mean of all ranks.
  double exposed = 0;
  /// Part of the step in which the rank that computes most does so: no order makes it shorter.
  double most_compute = 0;
};

/// What became of one setting.
struct OverlapTrial {
  OverlapConfig overlap;
  OverlapFigures figures;  ///< nothing, if it was refused
  bool simulated = false;
  bool fits = false;    ///< the memory
  std::string why_not;  ///< empty if it fits
};

/// The order of candidates: those that fit, the faster first; then those that do not, the smaller
/// first; then those that were refused. Of equal steps the one with less memory is better.
bool is_better(const OverlapTrial& a, const OverlapTrial& b);

/// Bytes that the planned rank that needs most takes on a device of `model`: on a GPU with kernels
/// and driver. What a quick plan has above `limit_bytes` is planned as a run does it, which takes
/// longer and finds offsets for a little less.
int64_t needed_bytes(const RunPlan& plan, const CostModel& model,
                     std::optional<int64_t> limit_bytes);

/// What the device of `model` has for a rank; nothing for CPUs, whose memory ranks share.
std::optional<int64_t> device_memory_bytes(const CostModel& model);

/// Simulates a run with one setting of [overlap] after the other, each once. Deterministic.
class OverlapTrials {
 public:
  struct Options {
    std::optional<int64_t> memory_bytes = {};  ///< that a rank may need; nothing: no limit
    PlannedRanks planned = PlannedRanks::kOnePerStage;
    int num_threads = 0;  ///< 0: those of the machine; makes no difference to results
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
