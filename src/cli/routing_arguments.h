#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "plan/routing_loads.h"

namespace braid {

/// The loads of ranks with different experts, for a prediction beside that of equal loads.
struct RoutingArguments {
  std::optional<double> skew;
  std::string loads;  ///< a metrics.jsonl
};

/// Adds --routing-skew and --routing-loads. `arguments` must outlive the parsing.
void add_routing_options(CLI::App& command, RoutingArguments& arguments);

/// Without an option the loads of moe.force_skew, or nothing. Throws ConfigError as `drawn_loads`
/// and `recorded_loads`, and DataError for a file that cannot be read.
std::optional<RoutingLoads> routing_loads(const RoutingArguments& arguments, const RunSpec& run);

}  // namespace braid
