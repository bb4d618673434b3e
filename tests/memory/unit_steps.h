#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory/programs.h"
#include "memory/unit_pools.h"

namespace braid {

/// Bytes of the buckets of a unit: its dense parameters, and its experts if it has any.
using UnitBytes = std::vector<int64_t>;
using UnitKinds = std::unordered_map<char, UnitBytes>;

/// One unit per letter of a pattern as Nemotron-H has them.
inline std::vector<UnitBytes> units_of_pattern(std::string_view pattern, const UnitKinds& kinds) {
  std::vector<UnitBytes> units;
  for (const char letter : pattern) {
    units.push_back(kinds.at(letter));
  }
  return units;
}

/// The units of a random hybrid: layers with states, attention, MLPs and experts of random sizes,
/// mostly in a repeated order. Half of the lists begin and end with a table.
inline std::vector<UnitBytes> random_hybrid(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  const int64_t width = 256 * between(4, 32);
  const int64_t square = 2 * width * width;  // bytes in bf16
  const int64_t expert = 3 * 2 * width * 128 * between(2, 16);
  const UnitKinds kinds = {{'M', {square * between(10, 14) / 2}},
                           {'*', {square * between(18, 32) / 8}},
                           {'-', {square * between(4, 12)}},
                           {'E', {square * between(1, 6) / 2, expert * between(1, 128)}}};
  constexpr std::string_view kLetters = "M*-E";
  const auto any_letter = [&] { return kLetters[static_cast<size_t>(between(0, 3))]; };
  std::string motif;
  for (int64_t i = 0, count = between(2, 10); i < count; ++i) {
    motif += any_letter();
  }
  std::string pattern;
  for (int64_t i = 0, count = between(4, 60); i < count; ++i) {
    const bool repeats = between(0, 7) > 0;
    pattern += repeats ? motif[static_cast<size_t>(i) % motif.size()] : any_letter();
  }
  std::vector<UnitBytes> units = units_of_pattern(pattern, kinds);
  if (between(0, 1) == 1) {
    const UnitBytes table = {2 * width * 1024 * between(32, 256)};
    units.insert(units.begin(), table);
    units.push_back(table);
  }
  return units;
}

/// Through the units and back, `num_microbatches` times. The last unit of a forward is the first of
/// the backward: one use.
inline std::vector<size_t> forward_and_backward(size_t num_units, int64_t num_microbatches = 1) {
  std::vector<size_t> uses;
  for (int64_t microbatch = 0; microbatch < num_microbatches; ++microbatch) {
    for (size_t unit = 0; unit < num_units; ++unit) {
      uses.push_back(unit);
    }
    for (size_t unit = num_units - 1; unit-- > 0;) {
      uses.push_back(unit);
    }
  }
  return uses;
}

/// A step that gathers units and does nothing else.
struct UnitStep {
  Program program;
  std::vector<UnitUse> uses;
};

/// Uses `order` of `units` one after the other. As `prefetch_parameters` does, hands a unit's
/// memory over and gathers it as soon as the unit `units_ahead` + 1 places before it is not used
/// any more.
inline UnitStep write_unit_step(const std::vector<UnitBytes>& units,
                                const std::vector<size_t>& order, size_t units_ahead) {
  ProgramWriter writer;
  const StreamId compute = writer.stream(StreamKind::kCompute);
  const StreamId comm = writer.stream(StreamKind::kComm);
  std::vector<std::vector<BufferRange>> gathered;
  UnitStep step;
  const auto gather = [&](size_t unit) {
    std::vector<BufferRange>& ranges = gathered.emplace_back();
    for (uint32_t bucket = 0; bucket < units[unit].size(); ++bucket) {
      const BufferId buffer = writer.buffer(units[unit][bucket], BufferRole::kGathered);
      ranges.push_back({buffer, 0, units[unit][bucket]});
      step.uses.push_back(
          {.buffer = buffer, .unit = static_cast<uint32_t>(unit), .bucket = bucket});
      writer.task(compute, {}, {buffer});
      writer.task(comm, {}, {buffer});
    }
  };
  for (size_t use = 0; use < order.size(); ++use) {
    while (gathered.size() < order.size() && gathered.size() <= use + units_ahead) {
      gather(order[gathered.size()]);
    }
    writer.task(compute, gathered[use], {});
  }
  step.program = writer.take();
  return step;
}

inline UnitStep write_unit_step(const std::vector<UnitBytes>& units, size_t units_ahead) {
  return write_unit_step(units, forward_and_backward(units.size()), units_ahead);
}

}  // namespace braid
