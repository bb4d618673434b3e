#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/model_spec.h"
#include "parallel/parameter_layout.h"

namespace braid {

/// Weights and optimizer state of a model on the host, fp32, in the flat arrays of the layout's
/// units. What checkpoints hold and executors are filled from.
struct ModelState {
  std::vector<std::vector<float>> weights;  ///< [units][unit.num_elems]
  std::vector<std::vector<float>> exp_avg;
  std::vector<std::vector<float>> exp_avg_sq;
};

/// All zeros, which is also what optimizer state starts with.
ModelState empty_state(const ParameterLayout& layout);

/// Fresh weights; the same for every layout (see `initial_values`).
ModelState initial_state(const ParameterLayout& layout, const ModelSpec& model, uint64_t seed);

/// A parameter's elements inside the unit arrays of one part of a state, for example
/// `state.weights`.
std::span<float> elements_of(const ParameterLayout& layout, const std::string& parameter,
                             std::vector<std::vector<float>>& part);

}  // namespace braid
