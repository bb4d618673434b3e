#include "report/fp8_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace braid {
namespace {

/// The records of one row.
class Row {
 public:
  explicit Row(int64_t last_step) : last_step_(last_step) {}

  void add(const Fp8Record& record) {
    raise(amax_of_run_, record.amax);
    raise(saturated_, record.saturated);
    take_worse(worst_of_run_, record);
    if (record.step == last_step_) {
      raise(amax_, record.amax);
      take_worse(worst_, record);
      sum_ += record.flushed;
      ++num_layers_;
    }
  }

  std::vector<std::string> cells(const std::string& place, const std::string& factor) const {
    const bool is_last = worst_ != nullptr;
    return {place,
            factor,
            is_last ? number(amax_) : "",
            number(amax_of_run_),
            is_last ? percent(sum_ / num_layers_) : "",
            is_last ? percent(worst_->flushed) : "",
            is_last ? split_site(worst_->site).layer : "",
            percent(worst_of_run_->flushed),
            split_site(worst_of_run_->site).layer,
            std::to_string(worst_of_run_->step),
            percent(saturated_)};
  }

 private:
  /// NaN, of which FP8 makes nothing better, is above all numbers.
  static void raise(double& most, double value) {
    most = most >= value || std::isnan(most) ? most : value;
  }
  static void take_worse(const Fp8Record*& worst, const Fp8Record& record) {
    worst = worst == nullptr || record.flushed > worst->flushed ? &record : worst;
  }
  static std::string number(double value) { return fmt::format("{:.3g}", value); }
  static std::string percent(double share) { return fmt::format("{:.3g}%", 100 * share); }

  int64_t last_step_;
  double amax_ = 0;
  double amax_of_run_ = 0;
  double saturated_ = 0;
  double sum_ = 0;
  int num_layers_ = 0;
  const Fp8Record* worst_ = nullptr;
  const Fp8Record* worst_of_run_ = nullptr;
};

}  // namespace

SiteParts split_site(const std::string& site) {
  const size_t layer = site.find('.');
  const size_t place = layer == std::string::npos ? layer : site.find('.', layer + 1);
  return place == std::string::npos ? SiteParts{.layer = "", .place = site}
                                    : SiteParts{site.substr(0, place), site.substr(place + 1)};
}

ReportTable fp8_table(const std::vector<Fp8Record>& records) {
  if (records.empty()) {
    return {};
  }
  std::vector<std::string> places;  // in the order of the model
  std::map<std::pair<std::string, std::string>, Row> rows;
  for (const Fp8Record& record : records) {
    const std::string place = split_site(record.site).place;
    if (std::ranges::find(places, place) == places.end()) {
      places.push_back(place);
    }
    rows.try_emplace({place, record.factor}, records.back().step).first->second.add(record);
  }
  ReportTable table{.columns = {"place", "factor", "amax", "of run", "flushed", "worst", "in",
                                "of run", "in", "step", "saturated"},
                    .rows = {}};
  for (const std::string& place : places) {
    for (const char* const factor : {"x", "w", "dy"}) {
      if (const auto row = rows.find({place, factor}); row != rows.end()) {
        table.rows.push_back(row->second.cells(place, factor));
      }
    }
  }
  return table;
}

std::string describe_table(const ReportTable& table) {
  std::vector<size_t> widths(table.columns.size(), 0);
  const auto for_each_line = [&](const auto& visit) {
    visit(table.columns);
    std::ranges::for_each(table.rows, visit);
  };
  for_each_line([&](const std::vector<std::string>& cells) {
    for (size_t i = 0; i < std::min(widths.size(), cells.size()); ++i) {
      widths[i] = std::max(widths[i], cells[i].size());
    }
  });
  std::string text;
  for_each_line([&](const std::vector<std::string>& cells) {
    for (size_t i = 0; i < std::min(widths.size(), cells.size()); ++i) {
      text += i == 0 ? fmt::format("{:<{}}", cells[i], widths[i])
                     : fmt::format("  {:>{}}", cells[i], widths[i]);
    }
    text += "\n";
  });
  return text;
}

}  // namespace braid
