#include "plan/step_gains.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/parallel_for.h"
#include "base/text.h"
#include "sim/price_changes.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kHalfTheTime = 0.5;

std::string percent_text(int64_t ns, int64_t step_ns) {
  return fmt::format("{:.1f}%", 100.0 * static_cast<double>(ns) / static_cast<double>(step_ns));
}

std::string seconds_text(int64_t ns) {
  return format_duration(static_cast<double>(ns) * 1e-9);
}

std::string gain_line(const StepGain& gain, int64_t step_ns) {
  const std::string memory =
      gain.needed_bytes > 0 ? fmt::format(", {}", format_bytes(gain.needed_bytes)) : "";
  return fmt::format("gain      {:<9} {} instead of {} (-{}){}: {}\n", gain.kind,
                     seconds_text(gain.step_ns), seconds_text(step_ns),
                     percent_text(step_ns - gain.step_ns, step_ns), memory, gain.what);
}

}  // namespace

StepGain best_hardware(const SimulatedRun& run, int num_threads) {
  std::vector<StepGain> gains;
  std::vector<PriceChanges> changes;
  const auto try_twice = [&](std::string_view what, const auto& halve) {
    halve(changes.emplace_back());
    gains.push_back({.kind = "hardware", .what = fmt::format("{} twice as fast", what)});
  };
  try_twice("tensor cores", [](PriceChanges& it) { it.products = it.attention = kHalfTheTime; });
  try_twice("memory", [](PriceChanges& it) { it.memory_bound = kHalfTheTime; });
  try_twice("links inside nodes", [](PriceChanges& it) { it.node_links = kHalfTheTime; });
  try_twice("links between nodes", [](PriceChanges& it) { it.network_links = kHalfTheTime; });
  parallel_for(gains.size(), num_threads,
               [&](size_t index) { gains[index].step_ns = run.step_ns_with(changes[index]); });
  return *std::ranges::min_element(gains, {}, &StepGain::step_ns);
}

std::string describe_gains(const StepGains& gains) {
  std::string text;
  for (const StepGain& gain : gains.gains) {
    text += gain_line(gain, gains.path.step_ns);
  }
  return gains.nothing.empty() ? text
                               : text + fmt::format("gain      none by a change of {}\n",
                                                    join(gains.nothing, " or "));
}

Json gains_json(const StepGains& gains) {
  Json changes = Json::array();
  for (const StepGain& gain : gains.gains) {
    changes.push_back({{"kind", gain.kind},
                       {"what", gain.what},
                       {"step_ns", gain.step_ns},
                       {"needed_bytes", gain.needed_bytes}});
  }
  return {{"step_ns", gains.path.step_ns}, {"changes", changes}};
}

}  // namespace braid
