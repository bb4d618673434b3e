#include "runtime/model_state.h"

namespace braid {

ModelState empty_state(const ParameterLayout& layout) {
  ModelState state;
  for (const ParameterUnit& unit : layout.units) {
    for (auto* part : {&state.weights, &state.exp_avg, &state.exp_avg_sq}) {
      part->emplace_back(static_cast<size_t>(unit.num_elems), 0.0f);
    }
  }
  return state;
}

ModelState initial_state(const ParameterLayout& layout, const ModelSpec& model, uint64_t seed) {
  ModelState state = empty_state(layout);
  for (const Parameter& parameter : layout.parameters) {
    initial_values(parameter, model.vocabulary, seed, 0,
                   elements_of(layout, parameter.name, state.weights));
  }
  return state;
}

std::span<float> elements_of(const ParameterLayout& layout, const std::string& parameter,
                             std::vector<std::vector<float>>& part) {
  const ParameterSlot& slot = layout.slot(parameter);
  return std::span(part[slot.unit])
      .subspan(static_cast<size_t>(slot.begin), static_cast<size_t>(slot.end - slot.begin));
}

}  // namespace braid
