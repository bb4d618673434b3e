#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "config/run_config.h"

namespace braid {

/// Value of overlap.cost that selects the machine of the run.
inline constexpr std::string_view kDeviceCost = "device";

/// Returns `config` with overlap.cost = "device" replaced by a cluster such as "h200x4": the data
/// sheet of the GPU named `gpu_name` ("NVIDIA H200"; nullopt: the run is on a CPU) times the ranks
/// of the run. A node has `ranks_per_host` ranks; above one node, the cluster has whole nodes. Any
/// other `config` is returned unchanged. Throws ConfigError for a CPU, and for a GPU whose data
/// sheet braid does not have.
RunConfig with_device_cost(RunConfig config, const std::optional<std::string>& gpu_name,
                           int64_t ranks_per_host);

/// Refuses overlap.cost = "device" for commands that do not look for a device. Throws ConfigError,
/// which says how to name one.
void check_cost_is_named(const RunConfig& config);

}  // namespace braid
