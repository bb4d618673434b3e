#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/run_spec.h"
#include "sim/cost_model.h"
#include "tune/overlap_trial.h"

namespace braid {

struct AutoOverlapProgress {
  int64_t trials = 0;   ///< settings tried so far
  int64_t at_most = 0;  ///< upper bound of `trials`
  int64_t best_ns = 0;  ///< step of the best one that fits
};

struct AutoOverlapOptions {
  /// Memory limit of a rank; nullopt: the memory of the model's device, no limit for CPUs.
  std::optional<int64_t> memory_bytes = {};
  int64_t max_trials = 200;  ///< approximate; trials for `reasons` come on top
  /// If the programs (one rank per pipeline stage) have more tasks than this in total, the search
  /// uses fewer microbatches. The best settings are then simulated with all microbatches.
  int64_t max_tasks = 15'000;
  /// Models with at least twice this many layers are searched with this many, each kind in
  /// proportion, if they are on one pipeline stage and leave half of the memory free. The best
  /// settings are then simulated with all layers.
  int64_t max_layers = 8;
  bool list_schedule = true;  ///< also try orders of tasks that only list scheduling makes
  int num_threads = 0;        ///< 0: all of the machine; does not change the result
  std::function<void(const AutoOverlapProgress&)> on_progress = {};
};

/// The chosen overlap setting and the settings it was chosen from.
struct AutoOverlap {
  RunSpec run;  ///< with the fastest setting that fits; every key of [overlap] is set
  std::vector<OverlapTrial> trials;   ///< in the order of the search
  int64_t num_microbatches = 0;       ///< of a step
  int64_t searched_microbatches = 0;  ///< in the search; at most num_microbatches
  int64_t num_layers = 0;             ///< of the model
  int64_t searched_layers = 0;        ///< in the search; at most num_layers
  int64_t num_whole_trials = 0;       ///< settings simulated again on the whole step
  OverlapFigures off;                 ///< overlap.mode = "off"
  OverlapFigures defaults;            ///< mode = "auto" without a cost model
  OverlapFigures chosen;
  bool fits = false;                 ///< `chosen` fits; false: none does, and it needs the least
  std::vector<std::string> reasons;  ///< "KEY = VALUE: 5.94 s -> 5.54 s", by gain
  std::vector<std::string> communication;  ///< a sentence per kind, as `describe_exposed`
};

/// Whether the configuration asks for `auto_overlap`: mode = "auto", and overlap.cost names a cost
/// model.
bool wants_auto_overlap(const RunConfig& config);

/// Searches the setting of [overlap] with the fastest simulated step that fits the memory.
/// Coordinate descent over `overlap_axes` from the best of several starts (nothing, the defaults of
/// all passes, rings), then the same with list scheduling. The best settings are simulated again on
/// the whole step and, if there are few context ranks, on all of them. If the whole step has more
/// layers than the searched one, the best setting is also tried with other numbers of units that
/// stay whole. Ensures: the result is no slower than mode = "off" and than the defaults. The search
/// can miss combinations that help only together. Deterministic: the result depends only on the
/// arguments.
///
/// Keys that mode = "auto" reads keep their value from the run file: comm_engine, if it is not
/// "auto", list_schedule, if it is true, and disable_passes.
///
/// `model` is as PlanOptions::cost_model; overlap.cost, if it is given, should name it. Unless
/// overlap.may_change_rounding is set, a run with the chosen setting is bitwise equal to one
/// without overlap. Throws ConfigError as `plan_run`.
AutoOverlap auto_overlap(const RunSpec& run, const CostModel& model,
                         const AutoOverlapOptions& options = {});

/// "auto overlap: 31 settings tried in 2.1 s, step 1.44 s instead of 1.61 s (off) and 1.47 s
/// (defaults)". `search_s` is the time of the search; it is printed if above 0.
std::string summarize(const AutoOverlap& found, double search_s = 0);

/// Several lines: the summary, memory, the gain of each chosen key, and how each kind of
/// communication is hidden or exposed.
std::string describe(const AutoOverlap& found, double search_s = 0);

}  // namespace braid
