#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "plan/run_spec.h"

namespace braid {

/// Tokens that follow each other in a sequence of a step's global batch.
struct TokenRun {
  int64_t sample = 0;    ///< of the step, from 0
  int64_t position = 0;  ///< of the first token in the sequence
  int64_t count = 0;

  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};

/// Chooses experts in place of routers (RoutingUse::kGiven). Routers are counted from 0, in the
/// order of `router_layers`. Any number of threads may read.
class RoutingSource {
 public:
  virtual ~RoutingSource() = default;
  /// The experts of a router's tokens: [run.count, K], for each token different ones. `step` counts
  /// from 1. Throws DataError if they cannot be read.
  virtual void read(int64_t step, int64_t router, const TokenRun& run,
                    std::span<int32_t> experts) const = 0;
};

/// Which of equal runs of the experts has most of a layer's rows.
struct FavouredExperts {
  int64_t index = 0;
  int64_t runs = 1;
};

/// The source that moe.replay or moe.force_skew names; null if neither does. With moe.force_skew
/// and `favoured`, the busiest of these runs of experts is always the same one: that of a rank
/// whose load is to be measured. Throws ConfigError naming moe.replay for a file of another model
/// or batch, and DataError for a damaged one.
std::unique_ptr<RoutingSource> make_routing_source(
    const RunSpec& run, const std::optional<FavouredExperts>& favoured = std::nullopt);

}  // namespace braid
