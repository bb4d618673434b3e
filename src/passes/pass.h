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
  int64_t num_changes = 0;  ///< tasks moved, removed, ...: what the pass's header counts
  std::string summary;      ///< for people, for example "moved 12 of 12 tasks"
};

struct PassResult {
  Program program;
  PassReport report;
};

/// What passes may know about the run apart from the program.
struct PassContext {
  /// Permits passes after which results may differ by rounding (split reductions and the like).
  bool may_change_rounding = false;
  /// What tasks take, for passes that weigh one order against another; null: nothing is known, and
  /// such passes do without. It has a device for every rank of the program. Not owned.
  const CostModel* cost_model = nullptr;
};

/// One rewrite: a program in, a program of the same meaning out. A pass may reorder tasks that do
/// not conflict, assign streams, split tasks into tasks of the same meaning, remove tasks without
/// effect, or change buffers; only `insert_events` and passes over all ranks, which run behind it,
/// leave events in a program that they change, all others drop them.
///
/// All that the rest of braid knows of a pass is said here, in the pass's own file: mode "off", the
/// keys of a run file, `braid passes`, docs/passes.md and the search of mode "auto" follow from it.
struct Pass {
  std::string_view name;     ///< as in `disable` lists and dumps; a string literal
  std::string_view summary;  ///< one sentence for people; a string literal
  /// Over the program of one rank, which must not depend on those of others: every rank runs it.
  std::function<PassResult(Program, const PassContext&)> run = {};
  /// Instead of `run`: over the programs of all ranks of a run at once, in place and with their
  /// events. Behind all passes over one rank.
  std::function<PassReport(AllRanks&, const PassContext&)> run_all = {};
  /// Why the pass cannot be disabled; empty: it can.
  std::string_view why_required = {};
  /// Results may differ by rounding: the runner skips it unless the context permits that.
  bool changes_rounding = false;
  /// Makes several calls of one, which others see.
  bool splits_calls = false;
  /// The result has the events that it needs; after other passes they are still to come.
  bool places_events = false;
  /// The pass does nothing but hide communication: mode "off" leaves it out.
  bool only_overlaps = false;
  /// What of the run file asks for what cannot be done without PassContext::cost_model, and why, as
  /// the begin of a message; empty: the pass does without one.
  std::string_view needs_costs = {};

  /// Keys of the run file that it reads, such as "overlap.fill_cooldown". A pass with none is on
  /// unless overlap.disable_passes names it or, if it only overlaps, mode is "off".
  std::vector<std::string_view> keys = {};
  /// Turns keys of section [overlap] into the pass's options. Without it they keep their defaults.
  std::function<void(const OverlapConfig&, PipelineOptions&)> read_keys = {};
  /// Whether keys of section [overlap] ask for the pass, which is disabled otherwise. Without it
  /// they always do.
  std::function<bool(const OverlapConfig&)> is_wanted = {};
  /// Both count in mode "manual" only, as mode "auto" takes the defaults of all passes; true: in
  /// every mode.
  bool reads_keys_in_every_mode = false;

  /// What a search may try for this run (overlap_axis.h). Without it a pass that only overlaps and
  /// has no keys is tried on and off, and any other one is as it is.
  std::function<std::vector<OverlapAxis>(const RunConfig&, const AxisLimits&)> axes = {};
};

/// A value for `Pass::axes` that tries nothing.
std::vector<OverlapAxis> no_axes(const RunConfig& config, const AxisLimits& limits);

}  // namespace braid
