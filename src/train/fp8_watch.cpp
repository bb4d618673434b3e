#include "train/fp8_watch.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/json.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

Fp8Record record_of(int64_t step, const Fp8Losses& losses) {
  const auto share = [&](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(losses.elems);
  };
  return {.step = step,
          .site = losses.place.site,
          .factor = losses.place.factor,
          .amax = std::bit_cast<float>(losses.largest),
          .flushed = share(losses.flushed),
          .saturated = share(losses.saturated)};
}

Fp8Losses losses_from(const Json& row) {
  const auto count = [&](size_t at) {
    const std::optional<int64_t> value = json_integer(row.at(at));
    if (!value || *value < 0) {
      throw_data_error("what FP8 lost on another rank is damaged: {} elements", row.at(at).dump());
    }
    return *value;
  };
  return {.place = {row.at(0).get<std::string>(), row.at(1).get<std::string>()},
          .largest = static_cast<uint32_t>(count(2)),
          .flushed = count(3),
          .saturated = count(4),
          .elems = count(5)};
}

}  // namespace

std::vector<Fp8Record> fp8_records(int64_t step, const std::vector<Fp8Losses>& losses) {
  std::vector<Fp8Losses> sums;
  std::map<std::pair<std::string, std::string>, size_t> index;
  for (const Fp8Losses& one : losses) {
    const auto [found, is_new] = index.try_emplace({one.place.site, one.place.factor}, sums.size());
    if (is_new) {
      sums.push_back(one);
      continue;
    }
    Fp8Losses& sum = sums[found->second];
    sum.largest = std::max(sum.largest, one.largest);
    sum.flushed += one.flushed;
    sum.saturated += one.saturated;
    sum.elems += one.elems;
  }
  std::vector<Fp8Record> records;
  for (const Fp8Losses& sum : sums) {
    records.push_back(record_of(step, sum));
  }
  return records;
}

std::vector<Fp8Record> gather_fp8(const Engine& engine, ProcessGroup& processes, int64_t step) {
  std::vector<Fp8Losses> losses = engine.fp8_losses();
  if (processes.size() > 1) {
    const std::vector<std::string> all = processes.all_gather("fp8 losses", fp8_bytes(losses));
    losses.clear();
    for (const std::string& bytes : all) {
      std::ranges::move(fp8_losses_of(bytes), std::back_inserter(losses));
    }
  }
  return fp8_records(step, losses);
}

std::string fp8_bytes(const std::vector<Fp8Losses>& losses) {
  Json json = Json::array();
  for (const Fp8Losses& one : losses) {
    json.push_back(Json::array(
        {one.place.site, one.place.factor, one.largest, one.flushed, one.saturated, one.elems}));
  }
  return json.dump();
}

std::vector<Fp8Losses> fp8_losses_of(const std::string& bytes) {
  std::vector<Fp8Losses> losses;
  try {
    for (const Json& row : parse_ordered_json(bytes, "what FP8 lost on another rank")) {
      losses.push_back(losses_from(row));
    }
  } catch (const Json::exception& error) {
    throw_data_error("what FP8 lost on another rank is damaged: {}", error.what());
  }
  return losses;
}

}  // namespace braid
