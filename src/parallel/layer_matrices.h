#pragma once

#include <cstdint>
#include <vector>

#include "model/parameter_shard.h"
#include "model/parameters.h"
#include "parallel/parameter_layout.h"

namespace braid {

/// Whether Muon updates a parameter: a matrix of a layer, by which a product multiplies.
/// Embeddings, the head, norms, biases, convolutions and adapters are AdamW's. Source: Jordan et
/// al., Muon, 2024.
bool is_muon_matrix(const Parameter& parameter);

/// The matrices in the parameters of units that Muon updates, ascending by unit and place: query,
/// key and value, gate and up, parts of Mamba's projections, and experts are one matrix each.
/// `num_experts`: of a layer of the model. Requires: no two ranks hold the same head.
std::vector<LayerMatrix> layer_matrices(const ParameterLayout& layout, const WeightShard& place,
                                        int64_t num_experts);

}  // namespace braid
