#pragma once

#include "hugging_face/config_keys.h"
#include "hugging_face/tensor_names.h"
#include "model/model_spec.h"

namespace braid {

/// Windows, of Mistral's classes by default, of Phi-3's if there is a key, of Qwen's if
/// "use_sliding_window" says so: the mixers of the model's layers.
void read_windows(ConfigKeys& keys, ModelSpec& model, const HfClass& type);

}  // namespace braid
