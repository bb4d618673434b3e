#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "config/run_config.h"

namespace braid {

/// overlap.cost that stands for the machine of the run.
inline constexpr std::string_view kDeviceCost = "device";

/// `config` with the cluster that overlap.cost = "device" stands for, such as "h200x4": the data
/// sheet of the GPU of that name ("NVIDIA H200"; nothing: the run is on a CPU), times the ranks of
/// the run, `ranks_per_host` in a node, above a node in whole nodes. Any other `config` as it is.
/// Throws ConfigError for a CPU, and for a GPU whose data sheet braid does not know.
RunConfig with_device_cost(RunConfig config, const std::optional<std::string>& gpu_name,
                           int64_t ranks_per_host);

/// Refuses overlap.cost = "device" where no device is looked for. Throws ConfigError, which says
/// how to name one.
void check_cost_is_named(const RunConfig& config);

}  // namespace braid
