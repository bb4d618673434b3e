#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plan/run_plan.h"

namespace braid {

/// What a rank receives for the experts of one layer, per microbatch, forward and backward
/// together, where ranks hold shards of experts (parallel.shard = "parameters") and gather them.
struct ExpertGathers {
  std::string layer;           ///< "layers.1": the first with experts
  int64_t gathered_bytes = 0;  ///< weights twice, and gradients for their reduction once
  /// Rows that would move besides those that do, if the same ranks held whole experts instead:
  /// tokens to their experts, results back, and both gradients; with equal loads.
  int64_t moved_bytes = 0;
  int64_t expert_ranks = 1;  ///< parallel.expert with which they would

  bool is_cheaper_to_move() const { return moved_bytes < gathered_bytes; }
};

/// Of a rank that gathers experts; nullopt if it gathers none.
std::optional<ExpertGathers> expert_gathers(const RunSpec& run, const ParameterLayout& layout);

/// A line with both byte counts and, where moving is cheaper, the key to set; empty without
/// gathered experts.
std::string describe_expert_gathers(const std::optional<ExpertGathers>& gathers);

}  // namespace braid
