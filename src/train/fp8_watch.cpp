#include "train/fp8_watch.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "base/errors.h"
#include "ops/quantize.h"

namespace braid {
namespace {

/// Adds up Fp8Tally of several ranks.
void add(const std::vector<int64_t>& values, std::vector<int64_t>& sums) {
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = i == Fp8Tally::kLargest ? std::max(sums[i], values[i]) : sums[i] + values[i];
  }
}

Fp8Record record_of(int64_t step, const Tally& tally) {
  const auto share = [&](size_t at) {
    return static_cast<double>(tally.values[at]) /
           static_cast<double>(tally.values[Fp8Tally::kElems]);
  };
  return {.step = step,
          .site = tally.place.site,
          .factor = tally.place.factor,
          .amax = std::bit_cast<float>(static_cast<uint32_t>(tally.values[Fp8Tally::kLargest])),
          .flushed = share(Fp8Tally::kFlushed),
          .saturated = share(Fp8Tally::kSaturated)};
}

}  // namespace

std::vector<Fp8Record> fp8_records(int64_t step, const std::vector<Tally>& tallies) {
  std::vector<Tally> sums;
  std::map<std::pair<std::string, std::string>, size_t> index;
  for (const Tally& tally : tallies) {
    if (tally.place.kind != TallyKind::kFp8Losses) {
      continue;
    }
    if (tally.values.size() != Fp8Tally::kSize) {
      throw_data_error("what FP8 lost at {} has {} numbers", tally.place.site, tally.values.size());
    }
    const auto [found, is_new] =
        index.try_emplace({tally.place.site, tally.place.factor}, sums.size());
    if (is_new) {
      sums.push_back(tally);
    } else {
      add(tally.values, sums[found->second].values);
    }
  }
  std::erase_if(sums, [](const Tally& sum) { return sum.values[Fp8Tally::kElems] == 0; });
  std::vector<Fp8Record> records;
  for (const Tally& sum : sums) {
    records.push_back(record_of(step, sum));
  }
  return records;
}

}  // namespace braid
