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
  int64_t at_most = 0;  ///< that will be tried
  int64_t best_ns = 0;  ///< step of the best one that fits
};

struct AutoOverlapOptions {
  /// What a rank may need; nothing: what a device of the model has, no limit for CPUs.
  std::optional<int64_t> memory_bytes = {};
  int64_t max_trials = 200;  ///< about as many; those that say why come on top
  /// Programs with more tasks than these (of one rank per pipeline stage together) are searched
  /// with fewer microbatches; the best settings are then simulated with all of them.
  int64_t max_tasks = 15'000;
  /// Models with twice these layers or more, on one pipeline stage and with half of the memory to
  /// spare, are searched with so many, of each kind its share; the best settings are then simulated
  /// with all of them.
  int64_t max_layers = 8;
  bool list_schedule = true;  ///< also try orders of tasks that no other key can ask for
  int num_threads = 0;        ///< 0: those of the machine; makes no difference to the result
  std::function<void(const AutoOverlapProgress&)> on_progress = {};
};

/// What braid chose to overlap, and what it chose from.
struct AutoOverlap {
  RunSpec run;  ///< with the fastest setting that fits: every key of [overlap] written out
  std::vector<OverlapTrial> trials;   ///< in the order of the search
  int64_t num_microbatches = 0;       ///< of a step
  int64_t searched_microbatches = 0;  ///< of the step that was searched; not more than of a step
  int64_t num_layers = 0;             ///< of the model
  int64_t searched_layers = 0;        ///< of the one that was searched; not more
  int64_t num_whole_trials = 0;       ///< settings that were then simulated on the whole step
  OverlapFigures off;                 ///< overlap.mode = "off"
  OverlapFigures defaults;            ///< mode = "auto" without a cost model
  OverlapFigures chosen;
  bool fits = false;  ///< what was chosen; false: nothing fits, and it is what needs least
  std::vector<std::string> reasons;        ///< "KEY = VALUE: 5.94 s -> 5.54 s", by gain
  std::vector<std::string> communication;  ///< a sentence per kind, as `describe_exposed`
};

/// Whether `auto_overlap` is asked for: mode = "auto", and overlap.cost says what tasks take.
bool wants_auto_overlap(const RunConfig& config);

/// Searches the setting of [overlap] with the fastest simulated step that fits the memory:
/// coordinate descent over `overlap_axes` from the best of some starts (nothing, the defaults of
/// all passes, rings), then the same with list scheduling. The best of the search are simulated
/// once more, on the whole step and, of few context ranks, on all; where that has more layers, the
/// best also with other numbers of units that stay whole. What is chosen is no slower than mode =
/// "off" and than the defaults; a descent may miss what only several changes at once would find.
/// Depends on its arguments alone: no clock decides.
///
/// What the run file says of keys that mode = "auto" reads stays: comm_engine, if it is not "auto",
/// list_schedule, if it is true, and disable_passes.
///
/// `model` is as PlanOptions::cost_model; overlap.cost, if it is given, should name it. Unless
/// overlap.may_change_rounding, a run with the chosen setting has the bits of one without overlap.
/// Throws ConfigError as `plan_run`.
AutoOverlap auto_overlap(const RunSpec& run, const CostModel& model,
                         const AutoOverlapOptions& options = {});

/// "auto overlap: 31 settings tried in 2.1 s, step 1.44 s instead of 1.61 s (off) and 1.47 s
/// (defaults)"; `search_s`, if it is above 0, is how long the search took.
std::string summarize(const AutoOverlap& found, double search_s = 0);

/// The summary, memory, what each chosen key gains, and what became of each kind of communication:
/// some lines.
std::string describe(const AutoOverlap& found, double search_s = 0);

}  // namespace braid
