#pragma once

#include <cstdint>
#include <vector>

#include "model/model_spec.h"
#include "model/parameters.h"

namespace braid {

/// The part of a model in one virtual stage of a pipeline: layers [first_layer, first_layer +
/// num_layers), preceded by the embedding and followed by the head if it has those. The layers of
/// multi-token prediction are where the head is. An empty stage returns its input.
struct StageSlice {
  int64_t first_layer = 0;
  int64_t num_layers = 0;
  bool has_embedding = true;
  bool has_head = true;

  friend bool operator==(const StageSlice&, const StageSlice&) = default;
};

StageSlice whole_model(const ModelSpec& spec);

/// Throws InternalError unless the layers exist, an embedding precedes layer 0 and a head follows
/// the last layer.
void check_stage(const ModelSpec& spec, const StageSlice& stage);

/// Whether the stage with the head reads the table of the embedding: as its output projection, or
/// for multi-token prediction.
bool head_reads_embedding(const ModelSpec& spec);

/// True if the stage with the head reads a copy of the embedding on another stage. The gradients
/// of both must then be added up (group "embedding"), and both get the same update.
bool has_embedding_copy(const ModelSpec& spec, const StageSlice& stage);

/// The stage's parameters in forward order, with the shapes of the whole model. A copy of the
/// embedding comes last, under its own name and unit ("embedding.tokens" in "embedding").
std::vector<Parameter> stage_parameters(const ModelSpec& spec, const StageSlice& stage);

}  // namespace braid
