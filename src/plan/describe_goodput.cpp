#include "plan/describe_goodput.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

constexpr double kHour = 3600;
constexpr double kMonth = 30 * 24 * kHour;
constexpr double kServed = 0.99;  ///< failures that need not wait for a repair
constexpr double kLeast = 0.01;   ///< useful time below which a forecast means nothing

}  // namespace

int64_t GoodputForecast::interval_steps() const {
  return std::llround(with_spares.interval_s / step_s);
}

double GoodputForecast::tokens_per_month(const Goodput& goodput) const {
  return tokens_per_s * goodput.useful * kMonth;
}

GoodputForecast forecast_goodput(const SimulatedRun& run, FailureModel model) {
  GoodputForecast forecast;
  model.devices = run.spec().mesh.num_ranks();
  forecast.model = model;
  forecast.node_devices = run.model().cluster().devices_per_node;
  forecast.step_s = static_cast<double>(run.step_ns()) * 1e-9;
  forecast.tokens_per_s = run.tokens_per_s();
  const double steps = std::max(1.0, std::round(best_interval_s(model) / forecast.step_s));
  forecast.with_spares = goodput_at(model, steps * forecast.step_s, model.restart_s);
  forecast.without_spares =
      goodput_at(model, steps * forecast.step_s, model.restart_s + model.repair_s);
  forecast.spares = spare_nodes(model, kServed);
  if (!(forecast.with_spares.useful > kLeast)) {
    throw_config_error(
        "--failures {}: {} devices fail every {} together, and a step takes {}, a save {} and a "
        "restart {}: the run would hardly move; give more hours, or shorter saves and restarts",
        model.device_hours, model.devices, format_duration(model.mean_s()),
        format_duration(forecast.step_s), format_duration(model.save_s),
        format_duration(model.restart_s));
  }
  return forecast;
}

std::string describe_goodput(const GoodputForecast& forecast) {
  const FailureModel& model = forecast.model;
  const Goodput& with = forecast.with_spares;
  const int nodes = (model.devices + forecast.node_devices - 1) / forecast.node_devices;
  return fmt::format(
      "failures  one every {} ({} devices, each every {:.0f} hours); save {}, restart {}, repair "
      "{}\n"
      "goodput   {:.1f}% with a checkpoint every {} steps ({}): saves {:.1f}%, failures {:.1f}%; "
      "{} tokens in 30 days\n"
      "spares    {} nodes beside {} ({:.1f}% more), so that 99% of failures wait for no repair; "
      "without any, goodput is {:.1f}%\n",
      format_duration(model.mean_s()), model.devices, model.device_hours,
      format_duration(model.save_s), format_duration(model.restart_s),
      format_duration(model.repair_s), 100 * with.useful, forecast.interval_steps(),
      format_duration(with.interval_s), 100 * with.saves, 100 * with.failures,
      format_count(std::llround(forecast.tokens_per_month(with))), forecast.spares, nodes,
      100.0 * static_cast<double>(forecast.spares) / nodes, 100 * forecast.without_spares.useful);
}

nlohmann::ordered_json goodput_json(const GoodputForecast& forecast) {
  const FailureModel& model = forecast.model;
  const Goodput& with = forecast.with_spares;
  return {{"device_hours", model.device_hours},
          {"mean_s", model.mean_s()},
          {"save_s", model.save_s},
          {"restart_s", model.restart_s},
          {"repair_s", model.repair_s},
          {"interval_steps", forecast.interval_steps()},
          {"interval_s", with.interval_s},
          {"useful", with.useful},
          {"saves", with.saves},
          {"failures", with.failures},
          {"tokens_per_month", forecast.tokens_per_month(with)},
          {"spare_nodes", forecast.spares},
          {"useful_without_spares", forecast.without_spares.useful}};
}

}  // namespace braid
