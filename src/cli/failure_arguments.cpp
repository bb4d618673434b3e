#include "cli/failure_arguments.h"

#include "cli/validators.h"

namespace braid {

void add_failure_options(CLI::App& command, FailureArguments& arguments) {
  constexpr double kMostHours = 1e9;
  constexpr double kMostSeconds = 1e6;
  CLI::Option* const failures =
      command
          .add_option("--failures", arguments.device_hours,
                      "Also forecast a month: goodput, the best checkpoint interval and what spare "
                      "nodes gain, if one device (with its share of the host) fails every so many "
                      "hours on average (Llama 3's 16,384 H100: 50,000)")
          ->type_name("HOURS")
          ->check(between(1, kMostHours));
  command
      .add_option("--save-seconds", arguments.save_s,
                  "With --failures: seconds that compute waits for a checkpoint")
      ->type_name("S")
      ->capture_default_str()
      ->needs(failures)
      ->check(between(0.001, kMostSeconds));
  command
      .add_option("--restart-seconds", arguments.restart_s,
                  "With --failures: seconds from a failure until the run computes again, on spare "
                  "nodes")
      ->type_name("S")
      ->capture_default_str()
      ->needs(failures)
      ->check(between(0, kMostSeconds));
  command
      .add_option("--repair-hours", arguments.repair_hours,
                  "With --failures: hours until a failed node is back or replaced")
      ->type_name("H")
      ->capture_default_str()
      ->needs(failures)
      ->check(between(0, kMostSeconds));
}

std::optional<GoodputForecast> goodput_forecast(const FailureArguments& arguments,
                                                const SimulatedRun& run) {
  if (!arguments.device_hours) {
    return std::nullopt;
  }
  constexpr double kHour = 3600;
  return forecast_goodput(run, {.device_hours = *arguments.device_hours,
                                .save_s = arguments.save_s,
                                .restart_s = arguments.restart_s,
                                .repair_s = arguments.repair_hours * kHour});
}

}  // namespace braid
