#pragma once

#include "hugging_face/config_keys.h"
#include "hugging_face/tensor_names.h"
#include "model/model_spec.h"

// The model of a config.json, by kinds of classes. A missing key has the default of transformers.
namespace braid {

/// Llama's, and those of its classes that differ in details: Mistral, Qwen, Phi-3, Mixtral, OLMoE.
ModelSpec read_llama(ConfigKeys& keys, const HfClass& type);
ModelSpec read_gemma3(ConfigKeys& keys, const HfClass& type);
/// V2 and V3.
ModelSpec read_deepseek(ConfigKeys& keys, const HfClass& type);
/// Layers with states alone.
ModelSpec read_mamba2(ConfigKeys& keys);
ModelSpec read_nemotron_h(ConfigKeys& keys);
ModelSpec read_gpt2(ConfigKeys& keys);

}  // namespace braid
