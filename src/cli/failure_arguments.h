#pragma once

#include <CLI/CLI.hpp>
#include <optional>

#include "plan/describe_goodput.h"

namespace braid {

/// How often devices fail and what that costs, for a forecast of a month.
struct FailureArguments {
  std::optional<double> device_hours;  ///< without it there is no forecast
  double save_s = 30;
  double restart_s = 300;
  double repair_hours = 4;
};

/// Adds --failures, --save-seconds, --restart-seconds and --repair-hours. `arguments` must outlive
/// the parsing.
void add_failure_options(CLI::App& command, FailureArguments& arguments);

/// Nothing without --failures. Throws ConfigError as `forecast_goodput`.
std::optional<GoodputForecast> goodput_forecast(const FailureArguments& arguments,
                                                const SimulatedRun& run);

}  // namespace braid
