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

struct SearchOptions {
  LayoutLimits limits = {};
  /// What a rank may take; nothing: as much as there is of the cluster's device, and no limit on a
  /// CPU, whose memory ranks share.
  std::optional<int64_t> memory_bytes = {};
  int64_t num_simulated = 40;  ///< layouts whose step is simulated, besides those that do not fit
  int num_threads = 0;         ///< 0: those of the machine; makes no difference to the result
  /// Called from one thread at a time, any of those that search.
  std::function<void(const SearchProgress&)> on_progress = {};
};

/// A layout whose step was simulated.
struct RankedLayout {
  Layout layout;
  RunConfig config;  ///< with that layout, validated and resolved
  double estimated_ns = 0;
  int64_t step_ns = 0;       ///< of the tasks and the host's part
  int64_t needed_bytes = 0;  ///< of the rank that needs most, with kernels and driver on a GPU
  double tokens_per_s_per_rank = 0;
  double mfu = 0;
  SimulatedMeans means;  ///< of the tasks: compute, exposed, copies and idle are the step
};

/// What became of all layouts: looked at = refused + too_big + behind + simulated.
struct SearchCounts {
  int64_t looked_at = 0;
  int64_t refused = 0;  ///< by the rules of the run file
  int64_t too_big = 0;  ///< for the memory, by estimate or as planned
  int64_t behind = 0;   ///< slower than those that were simulated, by a bound or by estimate
  int64_t simulated = 0;
};

struct LayoutSearch {
  SearchCounts counts;
  std::optional<int64_t> memory_bytes;  ///< the limit
  std::vector<RankedLayout> ranked;     ///< the fastest first; at least one
};

/// Searches the layout of `config` with the fastest simulated step that fits the memory.
///
/// Prices one layer of each way to split it (price_layers), bounds memory and step of every layout,
/// and estimates (LayoutEstimator) from the least bound on until no other can be among the best.
/// These are simulated in batches, one rank per pipeline stage: the best by estimate times
/// how far estimates of the same tensor, context and pipeline ranks were off, few of each of these
/// at a time, so that an error of the estimate does not decide. Deterministic.
///
/// `config` must be valid for parallel.ranks ranks in some layout, and resolved but for it; keys
/// that a layout sets and that are not fixed do not matter. `vocabulary` as in `resolve_model`.
/// Throws ConfigError if no layout is allowed, or none fits, naming what comes nearest.
LayoutSearch search_layouts(const RunConfig& config, int64_t vocabulary, const CostModel& model,
                            const SearchOptions& options = {});

}  // namespace braid
