#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "model/model_spec.h"

namespace braid {

/// The model of section [model]: the preset, if one is named, with the given keys over it; what is
/// left is derived (BlockDefinition::derive_sizes; vocabulary = the tokenizer's, max_positions =
/// the sequence where positions are learned). `tokenizer_vocabulary` is 0 if there is no tokenizer
/// to ask (planning). Throws ConfigError naming the key that is missing or impossible, a vocabulary
/// smaller than the tokenizer's included.
ModelSpec resolve_model(const ModelConfig& config, int64_t sequence, int64_t tokenizer_vocabulary);

/// The keys with other layers.
ModelConfig with_layers(ModelConfig config, const LayerPattern& layers);

/// Keys of section [model] that make the model another one than its preset, such as "layers" and
/// "width" of a run file under `--set model.preset=llama-8b`; empty without a preset. Throws
/// ConfigError if there is no such preset.
std::vector<std::string> changed_keys_of_preset(const ModelConfig& config);

}  // namespace braid
