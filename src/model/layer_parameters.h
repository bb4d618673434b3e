#pragma once

#include <cstdint>
#include <vector>

#include "model/parameters.h"

namespace braid {

/// `model_parameters` without those of layers outside of [first_layer, first_layer + num_layers).
std::vector<Parameter> parameters_with_layers(const ModelSpec& spec, int64_t first_layer,
                                              int64_t num_layers);

}  // namespace braid
