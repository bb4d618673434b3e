#include "report/expert_loads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double mean_of(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(rows.size());
}

/// Sum over the experts of a function of rows / mean, divided by their number.
template <class Function>
double mean_over(const std::vector<int64_t>& rows, double mean, Function&& of) {
  double sum = 0;
  for (const int64_t count : rows) {
    sum += of(static_cast<double>(count) / mean);
  }
  return sum / static_cast<double>(rows.size());
}

/// With ratios r to the mean of E experts, shares are r / E, and their entropy is
/// log E - mean of r log r.
double entropy_share(const std::vector<int64_t>& rows, double mean) {
  const double most = std::log(static_cast<double>(rows.size()));
  const double lost =
      mean_over(rows, mean, [](double ratio) { return ratio > 0 ? ratio * std::log(ratio) : 0; });
  return rows.size() == 1 ? 1 : std::max(0.0, (most - lost) / most);
}

/// Above all others if it is NaN, as in a damaged file.
double badness(const ExpertRecord& record) {
  return std::isnan(record.max_violation) ? std::numeric_limits<double>::infinity()
                                          : record.max_violation;
}

std::string percent(double share) {
  return fmt::format("{:.3g}%", share * 100);
}

/// The records of one layer.
struct Layer {
  std::string name;
  const ExpertRecord* last = nullptr;
  const ExpertRecord* worst = nullptr;
  int64_t dropped_rows = 0;     ///< of all records
  double capacity = 0;          ///< that would have sufficed for all records
  std::vector<bool> used = {};  ///< by expert: in any record with counts

  void add(const ExpertRecord& record) {
    last = &record;
    worst = worst == nullptr || badness(record) > badness(*worst) ? &record : worst;
    if (record.room) {
      dropped_rows += record.room->dropped_rows;
      capacity = std::max(capacity, record.room->sufficient_capacity);
    }
    used.resize(std::max(used.size(), record.counts.size()));
    for (size_t e = 0; e < record.counts.size(); ++e) {
      used[e] = used[e] || record.counts[e] > 0;
    }
  }

  std::vector<std::string> cells() const {
    const auto number = [](double value) {
      return std::isnan(value) ? std::string() : fmt::format("{:.3g}", value);
    };
    std::vector<std::string> cells = {
        name,
        number(1 + last->max_violation),
        number(1 + worst->max_violation),
        std::to_string(worst->step),
        number(last->min_ratio),
        number(last->std_ratio),
        number(last->entropy),
        std::to_string(last->dead),
        used.empty() ? "" : std::to_string(std::ranges::count(used, false)),
        number(last->balance_loss),
        number(last->sequence_balance_loss),
        number(last->z_loss)};
    if (last->room) {
      cells.insert(cells.end(), {percent(last->room->dropped_share), std::to_string(dropped_rows),
                                 percent(last->room->room_used),
                                 number(last->room->sufficient_capacity), number(capacity)});
    }
    return cells;
  }
};

/// Those with a record of the last step.
std::vector<Layer> layers_of(const std::vector<ExpertRecord>& records) {
  std::vector<Layer> layers;
  std::map<std::string, size_t> index;
  for (const ExpertRecord& record : records) {
    const auto [found, is_new] = index.try_emplace(record.layer, layers.size());
    if (is_new) {
      layers.push_back({.name = record.layer});
    }
    layers[found->second].add(record);
  }
  std::erase_if(layers,
                [&](const Layer& layer) { return layer.last->step != records.back().step; });
  return layers;
}

/// Four digits: a picture shows no more, and files stay small.
double rounded(double value) {
  return std::isfinite(value) ? std::round(value * 1e4) / 1e4 : kNaN;
}

/// Mean and worst of all layers, step by step.
void add_curves(const std::vector<ExpertRecord>& records, Json& json) {
  std::map<int64_t, std::vector<double>> steps;
  for (const ExpertRecord& record : records) {
    steps[record.step].push_back(record.max_violation);
  }
  for (const auto& [step, violations] : steps) {
    const double sum = std::accumulate(violations.begin(), violations.end(), 0.0);
    json["steps"].push_back(step);
    json["mean"].push_back(rounded(sum / static_cast<double>(violations.size())));
    json["worst"].push_back(rounded(*std::ranges::max_element(violations)));
  }
}

std::vector<double> ratios_of(const std::vector<int64_t>& rows) {
  const double mean = mean_of(rows);
  std::vector<double> ratios;
  for (const int64_t count : rows) {
    ratios.push_back(rounded(static_cast<double>(count) / mean));
  }
  return ratios;
}

/// Of the last step that has counts.
Json loads_json(const std::vector<ExpertRecord>& records) {
  int64_t step = -1;
  for (const ExpertRecord& record : records) {
    step = record.counts.empty() ? step : std::max(step, record.step);
  }
  if (step < 0) {
    return nullptr;
  }
  Json loads{{"step", step}, {"layers", Json::array()}, {"rows", Json::array()}};
  for (const ExpertRecord& record : records) {
    if (record.step == step && !record.counts.empty()) {
      loads["layers"].push_back(record.layer);
      loads["rows"].push_back(ratios_of(record.counts));
    }
  }
  return loads;
}

/// "Step 3", "Steps 3, 8".
std::string steps_text(const std::vector<int64_t>& steps) {
  return fmt::format("{} {}", steps.size() == 1 ? "Step" : "Steps", fmt::join(steps, ", "));
}

}  // namespace

ExpertRecord load_record(const std::vector<int64_t>& rows) {
  ExpertRecord record{.max_violation = kNaN,
                      .min_ratio = kNaN,
                      .std_ratio = kNaN,
                      .entropy = kNaN,
                      .dead = std::ranges::count(rows, 0),
                      .counts = rows};
  const double mean = rows.empty() ? 0 : mean_of(rows);
  if (mean > 0) {
    record.max_violation = static_cast<double>(*std::ranges::max_element(rows)) / mean - 1;
    record.min_ratio = static_cast<double>(*std::ranges::min_element(rows)) / mean;
    record.std_ratio =
        std::sqrt(mean_over(rows, mean, [](double ratio) { return (ratio - 1) * (ratio - 1); }));
    record.entropy = entropy_share(rows, mean);
  }
  return record;
}

ReportTable expert_table(const std::vector<ExpertRecord>& records, size_t max_layers) {
  if (records.empty()) {
    return {};
  }
  std::vector<Layer> layers = layers_of(records);
  std::ranges::stable_sort(layers, std::greater(),
                           [](const Layer& layer) { return badness(*layer.last); });
  layers.resize(std::min(layers.size(), max_layers));
  ReportTable table{.columns = {"layer", "max/mean", "of run", "at step", "min/mean", "std/mean",
                                "entropy", "dead", "of run", "balance", "in sequences", "z"},
                    .rows = {}};
  if (records.back().room) {
    table.columns.insert(table.columns.end(),
                         {"dropped", "rows of run", "room used", "capacity", "of run"});
  }
  for (const Layer& layer : layers) {
    table.rows.push_back(layer.cells());
  }
  return table;
}

std::string room_note(const std::vector<ExpertRecord>& records,
                      const std::vector<StepRecord>& steps) {
  const ExpertRecord* most = nullptr;
  int64_t dropped = 0;
  for (const ExpertRecord& record : records) {
    if (!record.room) {
      continue;
    }
    dropped += record.room->dropped_rows;
    if (most == nullptr || record.room->sufficient_capacity > most->room->sufficient_capacity) {
      most = &record;
    }
  }
  if (most == nullptr) {
    return "";
  }
  std::string note = fmt::format(
      "{} = {:.4g} has room for all rows of the recorded steps "
      "({} at step {} needs it).",
      most->room->of_experts ? "moe.expert_capacity" : "moe.capacity",
      std::ceil(most->room->sufficient_capacity * 1e3) / 1e3, most->layer, most->step);
  if (dropped > 0) {
    note += fmt::format(" {} rows were dropped.", dropped);
  }
  std::vector<int64_t> again;
  for (const StepRecord& step : steps) {
    if (step.reruns > 0) {
      again.push_back(step.step);
    }
  }
  if (!again.empty()) {
    note += fmt::format(" {} ran again for more room.", steps_text(again));
  }
  return note;
}

Json expert_json(const std::vector<ExpertRecord>& records, const std::vector<StepRecord>& steps) {
  if (records.empty()) {
    return nullptr;
  }
  Json json;
  add_curves(records, json);
  const ReportTable table = expert_table(records);
  json["table"] = {{"columns", table.columns}, {"rows", table.rows}};
  json["loads"] = loads_json(records);
  if (const std::string note = room_note(records, steps); !note.empty()) {
    json["room"] = note;
  }
  return json;
}

}  // namespace braid
