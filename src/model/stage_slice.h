#pragma once

#include <cstdint>
#include <vector>

#include "model/model_spec.h"
#include "model/parameters.h"

namespace braid {

/// The part of a model that is one virtual stage of a pipeline: layers [first_layer, first_layer +
/// num_layers), in front of them the embedding and behind them the head if it has those. A stage of
/// nothing passes on what it gets.
struct StageSlice {
  int64_t first_layer = 0;
  int64_t num_layers = 0;
  bool has_embedding = true;
  bool has_head = true;

  friend bool operator==(const StageSlice&, const StageSlice&) = default;
};

StageSlice whole_model(const ModelSpec& spec);

/// Throws InternalError unless the layers exist, an embedding stands before layer 0 and a head
/// behind the last one.
void check_stage(const ModelSpec& spec, const StageSlice& stage);

/// True if the stage's output projection is a copy of the embedding on another stage, so that the
/// gradients of both must be added up (group "embedding") and both are updated alike.
bool has_embedding_copy(const ModelSpec& spec, const StageSlice& stage);

/// The stage's parameters in forward order, with the shapes of the whole model. A copy of the
/// embedding comes last, under its own name and unit ("embedding.tokens" in "embedding").
std::vector<Parameter> stage_parameters(const ModelSpec& spec, const StageSlice& stage);

}  // namespace braid
