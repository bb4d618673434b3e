#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace braid {

class CostModel;
class PipelineOptions;
struct AllRanks;
struct AxisLimits;
struct OverlapAxis;
struct OverlapConfig;
struct RunConfig;

/// What a pass did.
struct PassReport {
  bool changed = false;
  int64_t num_changes = 0;  ///< tasks moved, removed, ...: the pass's header says what it counts
  std::string summary;      ///< for a person to read, for example "moved 12 of 12 tasks"
};

struct PassResult {
  Program program;
  PassReport report;
};

/// What passes may know about the run besides the program.
struct PassContext {
  /// Permits passes that may change results by rounding, such as split reductions.
  bool may_change_rounding = false;
  /// The durations of tasks, for passes that compare different orders. Null: durations are unknown
  /// and passes must work without them. It has a device for every rank of the program. Not owned.
  const CostModel* cost_model = nullptr;
};

/// One rewrite: a program in, a program of the same meaning out. A pass may reorder tasks that do
/// not conflict, assign streams, split tasks into tasks of the same meaning, remove tasks without
/// effect, or change buffers. A pass that changes a program drops its events. The exceptions are
/// `insert_events` and the passes over all ranks, which run after it.
///
/// This struct is the only description of a pass; it is filled in the pass's own file. Mode "off",
/// the keys of a run file, `braid passes`, docs/passes.md and the search of mode "auto" all use it.
struct Pass {
  std::string_view name;     ///< as in `disable` lists and dumps; a string literal
  std::string_view summary;  ///< one sentence that describes the pass; a string literal
  /// Runs over the program of one rank. Every rank runs it, so it must not depend on the programs
  /// of other ranks.
  std::function<PassResult(Program, const PassContext&)> run = {};
  /// Replaces `run` for a pass over the programs of all ranks at once. Changes them in place and
  /// keeps their events. Runs after all passes over one rank.
  std::function<PassReport(AllRanks&, const PassContext&)> run_all = {};
  /// Why the pass cannot be disabled; empty if it can be.
  std::string_view why_required = {};
  /// The pass may change results by rounding. The runner skips it unless the context permits that.
  bool changes_rounding = false;
  /// Splits one communication call into several, which the other ranks must do too. Like a pass
  /// that changes rounding, it is checked by StepMeaning::Of::kSums.
  bool splits_calls = false;
  /// The pass inserts all events that the program needs. Programs after other passes have no events
  /// yet.
  bool places_events = false;
  /// The pass only hides communication, so mode "off" disables it.
  bool only_overlaps = false;
  /// Start of an error message: which setting of the run file needs PassContext::cost_model, and
  /// why. Empty if the pass works without a cost model.
  std::string_view needs_costs = {};

  /// Keys of the run file that the pass reads, such as "overlap.fill_cooldown". A pass without keys
  /// is on unless overlap.disable_passes names it or, if it only overlaps, mode is "off".
  std::vector<std::string_view> keys = {};
  /// Sets the pass's options from section [overlap]. If empty, the options keep their defaults.
  std::function<void(const OverlapConfig&, PipelineOptions&)> read_keys = {};
  /// Whether section [overlap] enables the pass. If empty, the pass is always enabled.
  std::function<bool(const OverlapConfig&)> is_wanted = {};
  /// False: `read_keys` and `is_wanted` apply in mode "manual" only, because mode "auto" uses the
  /// defaults of all passes. True: they apply in every mode.
  bool reads_keys_in_every_mode = false;

  /// The axes that a search may try for this run (overlap_axis.h). If empty, a pass that only
  /// overlaps and has no keys is tried on and off, and any other pass is left unchanged.
  std::function<std::vector<OverlapAxis>(const RunConfig&, const AxisLimits&)> axes = {};
};

/// A value for `Pass::axes`: no axes to try.
std::vector<OverlapAxis> no_axes(const RunConfig& config, const AxisLimits& limits);

}  // namespace braid
