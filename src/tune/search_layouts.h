#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "plan/simulated_run.h"
#include "sim/cost_model.h"
#include "tune/layout_space.h"

namespace braid {

struct SearchProgress {
  std::string_view part;  ///< "prices", "estimates", "simulated steps"
  int64_t done = 0;
  int64_t total = 0;
};

struct LayoutSearch;

struct SearchOptions {
  LayoutLimits limits = {};
  /// Memory limit of a rank; nullopt: the memory of the cluster's device, and no limit on a CPU,
  /// whose memory ranks share.
  std::optional<int64_t> memory_bytes = {};
  int64_t num_simulated = 40;  ///< layouts whose step is simulated, besides those that do not fit
  /// Layouts with at most so many passes of a microbatch over a layer are simulated within seconds:
  /// as long as nothing is found, no layouts with more.
  int64_t quick_passes = 4096;
  int num_threads = 0;  ///< 0: all of the machine; does not change the result
  /// Called from one thread at a time; it may be any thread of the search.
  std::function<void(const SearchProgress&)> on_progress = {};
  /// Called by the calling thread when the run file's own layout is estimated, when it is tried,
  /// when the first layouts are simulated and when a faster one is found, with what is found so
  /// far, the fastest first, which may be nothing; not at the end.
  std::function<void(const LayoutSearch&)> on_found = {};
  /// Asked often, by any thread: true ends the search with what is found. The answer then depends
  /// on the moment.
  std::function<bool()> stop_requested = {};
};

/// A layout whose step was simulated.
struct RankedLayout {
  Layout layout;
  RunConfig config;  ///< with that layout, validated and resolved
  double estimated_ns = 0;
  double estimated_bytes = 0;  ///< of the rank that needs most
  int64_t step_ns = 0;         ///< of the tasks and the host's part
  int64_t needed_bytes = 0;    ///< of the rank that needs most, with kernels and driver on a GPU
  double tokens_per_s_per_rank = 0;
  double power_w = 0;  ///< limit of a device; 0: unknown
  double mfu = 0;
  SimulatedMeans means;   ///< of the tasks: compute, exposed, copies and idle add up to the step
  bool is_given = false;  ///< the run file's own
};

/// The layout that the run file has, for the ranks that are searched.
struct GivenLayout {
  Layout layout;
  std::string refusal = {};  ///< why it is not allowed; empty: it is
  double estimated_ns = 0;
  /// Of the rank that needs most: as planned; or as estimated, if it was not simulated.
  int64_t needed_bytes = 0;
  int64_t step_ns = 0;  ///< 0: it was not simulated
  bool fits = false;    ///< then it is one of the ranked layouts
};

/// Outcome of all layouts: looked_at = refused + too_big + behind + simulated.
struct SearchCounts {
  int64_t looked_at = 0;
  int64_t refused = 0;  ///< by the rules of the run file
  int64_t too_big = 0;  ///< for the memory, as estimated or planned
  int64_t behind = 0;   ///< not faster than the simulated ones, by a bound or an estimate, or like
                        ///< others: a recompute policy that repeats no more than a lesser one
  int64_t simulated = 0;
};

struct LayoutSearch {
  SearchCounts counts;
  std::optional<int64_t> memory_bytes;  ///< the limit
  std::vector<RankedLayout> ranked;     ///< the fastest first; at least one at the end
  GivenLayout given = {};
  bool was_stopped =
      false;  ///< by `stop_requested`: layouts that it has not looked at are `behind`
};

/// Searches the layout of `config` with the fastest simulated step that fits the memory.
///
/// The layout that `config` has itself comes first, whatever the limits are, so that there is an
/// answer at once and others are compared with it. Its errors of estimates correct those of others.
/// Then come layouts of the usual kind: those that published runs have (one sequence per
/// microbatch, powers of two, a ring of context ranks, 1f1b or interleaved stages, the optimizer's
/// state sharded, or all state without a pipeline). The best of them are simulated before the
/// others are priced, so that there is an answer early, and before the first answer only those that
/// are quick to simulate and leave some memory free; then all layouts are searched.
///
/// It prices one layer of each way to split it (price_layers) and bounds memory and step of every
/// layout. It then estimates layouts (LayoutEstimator), lowest bound first, until no other layout
/// can be among the best. These are simulated in batches, one rank per pipeline stage. The order is
/// the estimate times the error of earlier estimates with the same tensor, context and pipeline
/// ranks. A batch takes only a few layouts of each such group, so that an error of the estimate
/// does not decide. Deterministic.
///
/// `config` must be valid for parallel.ranks ranks in some layout, and resolved except for the
/// layout. Keys that a layout sets and that are not fixed matter only for its own. `vocabulary` as
/// in `resolve_model`. Throws ConfigError if no layout is allowed, or none fits, naming the nearest
/// candidate, or if it was stopped before a layout was simulated.
LayoutSearch search_layouts(const RunConfig& config, int64_t vocabulary, const CostModel& model,
                            const SearchOptions& options = {});

}  // namespace braid
