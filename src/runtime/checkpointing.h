#pragma once

#include <string>

#include "checkpoint/checkpoint.h"
#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "runtime/model_state.h"

namespace braid {

/// Writes weights under the parameters' names and optimizer state under "<name>.exp_avg" and
/// "<name>.exp_avg_sq", without the padding rows of the vocabulary, so that a checkpoint does not
/// depend on any layout. See `save_checkpoint`.
std::string save_model_state(const std::string& folder, const CheckpointState& progress,
                             const ParameterLayout& layout, const ModelSpec& model,
                             ModelState& state, int64_t keep);

/// Reads what `save_model_state` wrote. Throws DataError naming the tensor that is missing or has
/// another shape, which is what a checkpoint of another model looks like.
ModelState load_model_state(const LoadedCheckpoint& checkpoint, const ParameterLayout& layout,
                            const ModelSpec& model);

}  // namespace braid
