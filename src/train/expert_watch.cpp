#include "train/expert_watch.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "base/errors.h"
#include "ops/expert_exchange.h"
#include "report/expert_loads.h"
#include "report/fp8_table.h"

namespace braid {
namespace {

/// The sums of one layer.
struct LayerSums {
  std::vector<int64_t> rows;   ///< by expert
  int64_t rows_with_room = 0;  ///< that came to ranks, or experts, whose room is counted
  std::optional<RoomRecord> room;
  double balance = 0;
  double sequence_balance = 0;
  double z = 0;
};

void add_rows(const Tally& tally, LayerSums& sums) {
  if (sums.rows.empty()) {
    sums.rows.resize(tally.values.size());
  }
  if (sums.rows.size() != tally.values.size()) {
    throw_data_error("ranks counted {} and {} experts at {}", sums.rows.size(), tally.values.size(),
                     tally.place.site);
  }
  std::ranges::transform(sums.rows, tally.values, sums.rows.begin(), std::plus());
}

double ratio(int64_t rows, int64_t to) {
  return to > 0 ? static_cast<double>(rows) / static_cast<double>(to) : 0;
}

void add_room(const Tally& tally, LayerSums& sums) {
  if (tally.values.size() != RoomTally::kSize) {
    throw_data_error("a rank counted {} numbers of its room at {}, not {}", tally.values.size(),
                     tally.place.site, RoomTally::kSize);
  }
  const auto value = [&](int64_t index) { return tally.values[static_cast<size_t>(index)]; };
  RoomRecord& room = sums.room ? *sums.room : sums.room.emplace();
  room.of_experts = split_site(tally.place.site).place == kDropSite;
  sums.rows_with_room += value(RoomTally::kRows);
  room.dropped_rows += value(RoomTally::kDropped);
  room.dropped_share = ratio(room.dropped_rows, sums.rows_with_room);
  room.room_used =
      std::max(room.room_used, ratio(value(RoomTally::kMost), value(RoomTally::kRoom)));
  room.sufficient_capacity =
      std::max(room.sufficient_capacity, ratio(value(RoomTally::kMost), value(RoomTally::kEqual)));
}

/// NaN: the run has no such loss.
double without_coefficient(double loss, double coefficient) {
  return coefficient > 0 ? loss / coefficient : std::numeric_limits<double>::quiet_NaN();
}

/// "layers.10" after "layers.9".
struct ByNumber {
  bool operator()(const std::string& a, const std::string& b) const {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }
};

}  // namespace

std::vector<ExpertRecord> expert_records(const StepTallies& tallies,
                                         const ExpertRecordOptions& options) {
  std::map<std::string, LayerSums, ByNumber> layers;
  for (const Tally& tally : tallies.tallies) {
    if (tally.place.kind == TallyKind::kExpertRows) {
      add_rows(tally, layers[split_site(tally.place.site).layer]);
    } else if (tally.place.kind == TallyKind::kRowRoom) {
      add_room(tally, layers[split_site(tally.place.site).layer]);
    }
  }
  for (const RouterLossSums& sums : tallies.losses) {
    const SiteParts site = split_site(sums.site);
    if (const auto layer = layers.find(site.layer); layer != layers.end()) {
      LayerSums& to = layer->second;
      (site.place == kSequenceLossesSite ? to.sequence_balance : to.balance) += sums.balance;
      to.z += sums.z;
    }
  }
  std::vector<ExpertRecord> records;
  for (const auto& [layer, sums] : layers) {
    ExpertRecord& record = records.emplace_back(load_record(sums.rows));
    record.room = sums.room;
    record.step = options.step;
    record.layer = layer;
    record.balance_loss = without_coefficient(sums.balance, options.coefficients.balance);
    record.sequence_balance_loss =
        without_coefficient(sums.sequence_balance, options.coefficients.sequence_balance);
    record.z_loss = without_coefficient(sums.z, options.coefficients.z);
    if (!options.with_counts) {
      record.counts.clear();
    }
  }
  return records;
}

std::optional<WorstRoom> worst_room(const std::vector<ExpertRecord>& records) {
  std::optional<WorstRoom> worst;
  for (const ExpertRecord& record : records) {
    if (record.room) {
      worst = worst ? worst : WorstRoom{};
      worst->used = std::max(worst->used, record.room->room_used);
      worst->dropped_share = std::max(worst->dropped_share, record.room->dropped_share);
    }
  }
  return worst;
}

double worst_load(const std::vector<ExpertRecord>& records) {
  double worst = 0;
  for (const ExpertRecord& record : records) {
    worst = std::max(worst, 1 + record.max_violation);
  }
  return worst;
}

}  // namespace braid
