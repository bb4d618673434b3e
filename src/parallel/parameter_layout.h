#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/parameters.h"

namespace braid {

inline constexpr int64_t kParameterAlignmentElems = 64;

/// A parameter's place in its unit's flat buffers.
struct ParameterSlot {
  size_t parameter = 0;  ///< index into ParameterLayout::parameters
  size_t unit = 0;       ///< index into ParameterLayout::units
  int64_t begin = 0;     ///< elements [begin, end) of the unit
  int64_t end = 0;
};

/// Parameters that are gathered, reduced and updated together, in one flat array: first those that
/// decay, then the others, each at a multiple of 64 elements. Params, main weights, main grads and
/// optimizer states all use these offsets.
struct ParameterUnit {
  std::string name;
  int32_t layer = -1;
  std::vector<size_t> slots;  ///< indices into ParameterLayout::slots, ascending begin
  int64_t decay_end = 0;      ///< elements [0, decay_end) decay, [decay_end, num_elems) do not
  int64_t num_elems = 0;      ///< alignment gaps included
};

struct ParameterLayout {
  std::vector<Parameter> parameters;
  std::vector<ParameterSlot> slots;  ///< parallel to `parameters`
  std::vector<ParameterUnit> units;  ///< in forward order
  std::unordered_map<std::string, size_t> by_name;

  const ParameterSlot& slot(const std::string& name) const;
};

ParameterLayout make_parameter_layout(std::vector<Parameter> parameters);

/// Names of a unit's flat buffers.
std::string param_buffer_name(const ParameterUnit& unit);
std::string main_weight_buffer_name(const ParameterUnit& unit);
std::string main_grad_buffer_name(const ParameterUnit& unit);
std::string exp_avg_buffer_name(const ParameterUnit& unit);
std::string exp_avg_sq_buffer_name(const ParameterUnit& unit);

}  // namespace braid
