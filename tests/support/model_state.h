#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "parallel/parameter_layout.h"
#include "state/state_source.h"

namespace braid {

/// All weights and optimizer state of a small model in host memory, fp32, in the flat arrays of the
/// layout's units.
struct ModelState final : StateSource {
  std::vector<std::vector<float>> weights;  ///< [units][unit.num_elems]
  std::vector<std::vector<float>> exp_avg;
  std::vector<std::vector<float>> exp_avg_sq;
  std::vector<std::vector<float>> ema;  ///< zeros: there are no averages

  std::vector<std::vector<float>>& part(StatePart which) {
    return which == StatePart::kWeights    ? weights
           : which == StatePart::kExpAvg   ? exp_avg
           : which == StatePart::kExpAvgSq ? exp_avg_sq
                                           : ema;
  }
  bool is_zero(StatePart which) const override {
    return which == StatePart::kEma && std::ranges::all_of(ema, [](const auto& unit) {
             return std::ranges::all_of(unit, [](float value) { return value == 0; });
           });
  }
  void read(StatePart which, size_t unit, int64_t begin, std::span<float> out,
            WorkerPool&) const override {
    const auto& values = const_cast<ModelState*>(this)->part(which).at(unit);
    std::copy_n(values.begin() + begin, out.size(), out.begin());
  }
};

inline ModelState empty_state(const ParameterLayout& layout) {
  ModelState state;
  for (const ParameterUnit& unit : layout.units) {
    for (const StatePart part : kStateParts) {
      state.part(part).emplace_back(static_cast<size_t>(unit.num_elems), 0.0f);
    }
  }
  return state;
}

/// A parameter's elements inside the unit arrays of one part of a state.
inline std::span<float> elements_of(const ParameterLayout& layout, const std::string& parameter,
                                    std::vector<std::vector<float>>& part) {
  const ParameterSlot& slot = layout.slot(parameter);
  return std::span(part[slot.unit])
      .subspan(static_cast<size_t>(slot.begin), static_cast<size_t>(slot.end - slot.begin));
}

/// Fresh weights, each parameter at once.
inline ModelState initial_state(const ParameterLayout& layout, const ModelSpec& model,
                                uint64_t seed) {
  ModelState state = empty_state(layout);
  for (const Parameter& parameter : layout.parameters) {
    initial_values(parameter, model.vocabulary, seed, 0,
                   elements_of(layout, parameter.name, state.weights));
  }
  return state;
}

/// Everything that a source has, read in pieces of at most `piece_elems`.
inline ModelState whole_state(const ParameterLayout& layout, const StateSource& source,
                              int64_t piece_elems = int64_t{1} << 20) {
  ModelState state = empty_state(layout);
  WorkerPool workers(1);
  for (const StatePart part : kStateParts) {
    for (size_t unit = 0; unit < layout.units.size(); ++unit) {
      const std::span<float> values(state.part(part)[unit]);
      for (size_t begin = 0; begin < values.size(); begin += static_cast<size_t>(piece_elems)) {
        const size_t count = std::min(values.size() - begin, static_cast<size_t>(piece_elems));
        source.read(part, unit, static_cast<int64_t>(begin), values.subspan(begin, count), workers);
      }
    }
  }
  return state;
}

}  // namespace braid
