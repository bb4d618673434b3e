#include "train/gather_tallies.h"

#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/json.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kWhat = "what another rank counted";

int64_t count_from(const Json& json) {
  const std::optional<int64_t> value = json_integer(json);
  if (!value || *value < 0) {
    throw_data_error("{} is damaged: a count of {}", kWhat, json.dump());
  }
  return *value;
}

TallyKind kind_from(const Json& json) {
  const int64_t kind = count_from(json);
  if (kind >= static_cast<int64_t>(kNumTallyKinds)) {
    throw_data_error("{} is damaged: tallies of kind {}", kWhat, kind);
  }
  return static_cast<TallyKind>(kind);
}

Tally tally_from(const Json& row) {
  Tally tally{.place = {.kind = kind_from(row.at(0)),
                        .site = row.at(1).get<std::string>(),
                        .factor = row.at(2).get<std::string>()},
              .values = {}};
  for (const Json& value : row.at(3)) {
    tally.values.push_back(count_from(value));
  }
  return tally;
}

double loss_from(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

StepTallies tallies_from(const Json& json) {
  StepTallies tallies;
  for (const Json& row : json.at("tallies")) {
    tallies.tallies.push_back(tally_from(row));
  }
  for (const Json& row : json.at("losses")) {
    tallies.losses.push_back({.site = row.at(0).get<std::string>(),
                              .balance = loss_from(row.at(1)),
                              .z = loss_from(row.at(2))});
  }
  return tallies;
}

void append(StepTallies more, StepTallies& to) {
  std::ranges::move(more.tallies, std::back_inserter(to.tallies));
  std::ranges::move(more.losses, std::back_inserter(to.losses));
}

}  // namespace

StepTallies gather_tallies(const Engine& engine, ProcessGroup& processes) {
  StepTallies own = engine.tallies();
  if (processes.size() == 1) {
    return own;
  }
  StepTallies all;
  for (const std::string& bytes : processes.gather("tallies", tally_bytes(own))) {
    append(tallies_of(bytes), all);
  }
  return all;
}

std::string tally_bytes(const StepTallies& tallies) {
  Json json{{"tallies", Json::array()}, {"losses", Json::array()}};
  for (const Tally& tally : tallies.tallies) {
    json["tallies"].push_back(Json::array({static_cast<int64_t>(tally.place.kind), tally.place.site,
                                           tally.place.factor, tally.values}));
  }
  for (const RouterLossSums& sums : tallies.losses) {
    json["losses"].push_back(Json::array({sums.site, sums.balance, sums.z}));
  }
  return json.dump();
}

StepTallies tallies_of(const std::string& bytes) {
  try {
    return tallies_from(parse_ordered_json(bytes, kWhat));
  } catch (const Json::exception& error) {
    throw_data_error("{} is damaged: {}", kWhat, error.what());
  }
}

}  // namespace braid
