#include "report/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "report/fp8_table.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;
using Format = std::function<std::string(double)>;

constexpr size_t kParts = 5;
constexpr size_t kTitleChars = 20;

std::string line(std::string_view name, std::string_view a, std::string_view b,
                 std::string_view difference) {
  return fmt::format("{:<28} {:>{}} {:>{}} {:>11}\n", name, a, kTitleChars, b, kTitleChars,
                     difference);
}

/// A row, if both runs have the figure.
std::string row(std::string_view name, std::optional<double> a, std::optional<double> b,
                const Format& format, int decimals) {
  if (!a || !b) {
    return "";
  }
  const double percent = *a == 0 ? 0 : 100 * (*b / *a - 1);
  return line(name, format(*a), format(*b), fmt::format("{:+.{}f}%", percent, decimals));
}

std::string short_title(const Json& data) {
  const auto title = data.at("title").get<std::string>();
  return title.size() <= kTitleChars ? title : "..." + title.substr(title.size() - kTitleChars + 3);
}

/// Finite numbers of a column of steps.
std::vector<double> numbers(const Json& column) {
  std::vector<double> list;
  for (const Json& value : column) {
    if (value.is_number()) {
      list.push_back(value.get<double>());
    }
  }
  return list;
}

std::optional<double> median(std::vector<double> list) {
  if (list.empty()) {
    return std::nullopt;
  }
  const auto middle = list.begin() + static_cast<ptrdiff_t>(list.size() / 2);
  std::ranges::nth_element(list, middle);
  return *middle;
}

/// The figure of a simulated run, or the median of the steps.
std::optional<double> of_step(const Json& data, const char* simulated, double unit,
                              const char* column) {
  const Json& simulation = data.at("simulation");
  if (simulation.is_object()) {
    return simulation.at(simulated).get<double>() * unit;
  }
  return median(numbers(data.at("steps").at(column)));
}

std::optional<double> last_held_out(const Json& data) {
  const std::vector<double> losses = numbers(data.at("evaluations").at("loss"));
  return losses.empty() ? std::nullopt : std::optional(losses.back());
}

double peak_bytes(const Json& data) {
  const Json& memory = data.at("memory");
  double bytes =
      memory.at("persistent_bytes").get<double>() + memory.at("step_bytes").get<double>();
  if (data.at("simulation").is_object()) {
    for (const Json& stage : data.at("simulation").at("stages")) {
      bytes = std::max(bytes, stage.at("peak_bytes").get<double>());
    }
  }
  return bytes;
}

struct StepLosses {
  int64_t step = 0;
  double a = 0;
  double b = 0;
};

std::map<int64_t, double> losses_by_step(const Json& data) {
  const Json& steps = data.at("steps");
  std::map<int64_t, double> losses;
  for (size_t i = 0; i < steps.at("step").size(); ++i) {
    const Json& loss = steps.at("loss").at(i);
    if (loss.is_number()) {
      losses[steps.at("step").at(i).get<int64_t>()] = loss.get<double>();
    }
  }
  return losses;
}

/// Of the steps that both have, ascending.
std::vector<StepLosses> common_losses(const Json& a, const Json& b) {
  const std::map<int64_t, double> of_b = losses_by_step(b);
  std::vector<StepLosses> common;
  for (const auto& [step, loss] : losses_by_step(a)) {
    if (const auto found = of_b.find(step); found != of_b.end()) {
      common.push_back({step, loss, found->second});
    }
  }
  return common;
}

/// A row for each fifth of the common steps.
std::string loss_rows(const std::vector<StepLosses>& losses) {
  std::string rows;
  const size_t parts = std::min(kParts, losses.size());
  for (size_t part = 0; part < parts; ++part) {
    const size_t begin = part * losses.size() / parts;
    const size_t end = (part + 1) * losses.size() / parts;
    StepLosses sum;
    for (size_t i = begin; i < end; ++i) {
      sum.a += losses[i].a;
      sum.b += losses[i].b;
    }
    const auto count = static_cast<double>(end - begin);
    rows += row(
        end - begin == 1
            ? fmt::format("loss, step {}", losses[begin].step)
            : fmt::format("loss, steps {} to {}", losses[begin].step, losses[end - 1].step),
        sum.a / count, sum.b / count, [](double loss) { return fmt::format("{:.4f}", loss); }, 2);
  }
  return rows;
}

std::string describe(const Json& a, const Json& b) {
  const Format loss = [](double value) { return fmt::format("{:.4f}", value); };
  const Format time = [](double ms) { return format_duration(ms * 1e-3); };
  const Format count = [](double value) { return fmt::format("{:.0f}", value); };
  const Format bytes = [](double value) { return format_bytes(std::llround(value)); };
  return line("", short_title(a), short_title(b), "difference") + loss_rows(common_losses(a, b)) +
         row("held-out loss, last", last_held_out(a), last_held_out(b), loss, 2) +
         row("step time, median", of_step(a, "step_ns", 1e-6, "step_ms"),
             of_step(b, "step_ns", 1e-6, "step_ms"), time, 1) +
         row("tokens/s, median", of_step(a, "tokens_per_s", 1, "tokens_per_s"),
             of_step(b, "tokens_per_s", 1, "tokens_per_s"), count, 1) +
         row("peak memory of a rank", peak_bytes(a), peak_bytes(b), bytes, 1);
}

/// Of a run's data, under its title.
std::string titled_table(std::string_view what, const Json& data, const Json& table) {
  return fmt::format("\n{} of {}\n{}", what, short_title(data),
                     describe_table({.columns = table.at("columns"), .rows = table.at("rows")}));
}

}  // namespace

std::string describe_tables(const RunReport& run) {
  const Json report = parse_ordered_json(run.json, "the report of a run");
  try {
    const Json& data = report.at("data");
    std::string text;
    if (data.contains("fp8_watch")) {
      text += titled_table("fp8", data, data.at("fp8_watch"));
    }
    if (data.contains("experts")) {
      text += titled_table("experts", data, data.at("experts").at("table"));
    }
    return text;
  } catch (const Json::exception& error) {
    throw_data_error("a report has a damaged table: {}", error.what());
  }
}

std::string describe_comparison(const RunReport& a, const RunReport& b) {
  const Json of_a = parse_ordered_json(a.json, "the report of the first run");
  const Json of_b = parse_ordered_json(b.json, "the report of the second run");
  try {
    return describe(of_a.at("data"), of_b.at("data"));
  } catch (const Json::exception& error) {
    throw_data_error("a report lacks what is compared: {}", error.what());
  }
}

}  // namespace braid
