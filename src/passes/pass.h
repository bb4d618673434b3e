#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ir/program.h"

namespace braid {

class CostModel;

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

/// One step of the pipeline: a program in, a program of the same meaning out. A pass may reorder
/// tasks that do not conflict, assign streams, split tasks into tasks of the same meaning, remove
/// tasks without effect, or change buffers; only `insert_events` writes events, all others drop the
/// events of a program that they change.
struct Pass {
  std::string_view name;     ///< as in `disable` lists and dumps; a string literal
  std::string_view summary;  ///< one sentence for people; a string literal
  std::function<PassResult(Program, const PassContext&)> run;
  /// Why the pass cannot be disabled; empty: it can.
  std::string_view why_required = {};
  /// Results may differ by rounding: the runner skips it unless the context permits that.
  bool changes_rounding = false;
  /// The result has the events that it needs; after other passes they are still to come.
  bool places_events = false;
};

}  // namespace braid
