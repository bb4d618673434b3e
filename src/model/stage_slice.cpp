#include "model/stage_slice.h"

#include <optional>
#include <utility>

#include "base/errors.h"
#include "model/layer_parameters.h"

namespace braid {
namespace {

/// Of the parameters without the layers of other stages.
bool is_in_stage(const ModelSpec& spec, const Parameter& parameter, const StageSlice& stage) {
  if (parameter.layer >= spec.layers.size()) {
    return stage.has_head;  // multi-token prediction
  }
  if (parameter.layer >= 0) {
    return true;
  }
  return parameter.unit == "embedding" ? stage.has_embedding : stage.has_head;
}

}  // namespace

StageSlice whole_model(const ModelSpec& spec) {
  return {
      .first_layer = 0, .num_layers = spec.layers.size(), .has_embedding = true, .has_head = true};
}

void check_stage(const ModelSpec& spec, const StageSlice& stage) {
  const int64_t end = stage.first_layer + stage.num_layers;
  check(stage.first_layer >= 0 && stage.num_layers >= 0 && end <= spec.layers.size(),
        "a stage of layers {} to {} of {}", stage.first_layer, end, spec.layers.size());
  check(!stage.has_embedding || stage.first_layer == 0, "an embedding in front of layer {}",
        stage.first_layer);
  check(!stage.has_head || end == spec.layers.size(), "a head behind layer {} of {}", end,
        spec.layers.size());
}

bool head_reads_embedding(const ModelSpec& spec) {
  return spec.tied_embeddings || spec.mtp_depth > 0;
}

bool has_embedding_copy(const ModelSpec& spec, const StageSlice& stage) {
  return head_reads_embedding(spec) && stage.has_head && !stage.has_embedding;
}

std::vector<Parameter> stage_parameters(const ModelSpec& spec, const StageSlice& stage) {
  check_stage(spec, stage);
  std::vector<Parameter> list;
  std::optional<Parameter> copy;
  for (Parameter& parameter : parameters_with_layers(spec, stage.first_layer, stage.num_layers)) {
    if (is_in_stage(spec, parameter, stage)) {
      list.push_back(std::move(parameter));
    } else if (has_embedding_copy(spec, stage) && parameter.name == "embedding.tokens") {
      copy = std::move(parameter);
    }
  }
  if (copy) {
    list.push_back(std::move(*copy));
  }
  return list;
}

}  // namespace braid
