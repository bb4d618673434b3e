#include "parallel/parameter_layout.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

int64_t align(int64_t elems) {
  return (elems + kParameterAlignmentElems - 1) / kParameterAlignmentElems *
         kParameterAlignmentElems;
}

/// Appends the unit's slots whose parameters decay, or those that do not.
void place(ParameterLayout& layout, ParameterUnit& unit, const std::vector<size_t>& members,
           bool decays) {
  for (const size_t index : members) {
    if (layout.parameters[index].weight_decay != decays) {
      continue;
    }
    ParameterSlot& slot = layout.slots[index];
    slot.begin = unit.num_elems;
    slot.end = slot.begin + layout.parameters[index].shape.num_elems();
    unit.num_elems = align(slot.end);
    unit.slots.push_back(index);
  }
}

}  // namespace

const ParameterSlot& ParameterLayout::slot(const std::string& name) const {
  const auto found = by_name.find(name);
  check(found != by_name.end(), "no parameter is called {}", name);
  return slots[found->second];
}

ParameterLayout make_parameter_layout(std::vector<Parameter> parameters) {
  ParameterLayout layout;
  layout.parameters = std::move(parameters);
  layout.slots.resize(layout.parameters.size());
  std::vector<std::vector<size_t>> members;
  for (size_t index = 0; index < layout.parameters.size(); ++index) {
    const Parameter& parameter = layout.parameters[index];
    const bool inserted = layout.by_name.emplace(parameter.name, index).second;
    check(inserted, "two parameters are called {}", parameter.name);
    if (layout.units.empty() || layout.units.back().name != parameter.unit) {
      layout.units.push_back({.name = parameter.unit, .layer = parameter.layer});
      members.emplace_back();
    }
    members.back().push_back(index);
    layout.slots[index].parameter = index;
    layout.slots[index].unit = layout.units.size() - 1;
  }
  for (size_t index = 0; index < layout.units.size(); ++index) {
    ParameterUnit& unit = layout.units[index];
    place(layout, unit, members[index], true);
    unit.decay_end = unit.num_elems;
    place(layout, unit, members[index], false);
  }
  return layout;
}

std::string param_buffer_name(const ParameterUnit& unit) {
  return "params." + unit.name;
}

std::string main_weight_buffer_name(const ParameterUnit& unit) {
  return "main_weights." + unit.name;
}

std::string main_grad_buffer_name(const ParameterUnit& unit) {
  return "main_grads." + unit.name;
}

std::string exp_avg_buffer_name(const ParameterUnit& unit) {
  return "exp_avg." + unit.name;
}

std::string exp_avg_sq_buffer_name(const ParameterUnit& unit) {
  return "exp_avg_sq." + unit.name;
}

}  // namespace braid
