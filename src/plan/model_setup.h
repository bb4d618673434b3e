#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "model/model_spec.h"

namespace braid {

/// Resolves section [model]: starts from the preset, if one is named, applies the given keys, and
/// derives the remaining sizes (BlockDefinition::derive_sizes; the vocabulary is the tokenizer's;
/// max_positions is the sequence if positions are learned). `tokenizer_vocabulary` is 0 if there is
/// no tokenizer (planning). Throws ConfigError naming the key that is missing or impossible,
/// including a vocabulary smaller than the tokenizer's.
ModelSpec resolve_model(const ModelConfig& config, int64_t sequence, int64_t tokenizer_vocabulary);

/// `model` with the adapters of section [lora], whose other keys must be left out without a rank.
/// Throws ConfigError as `check_lora`.
ModelSpec with_adapters(ModelSpec model, const LoraConfig& config);

/// Section [model] of that model, with every key that its family has: `resolve_model` gives the
/// same model. Models that are equal have equal keys, however their run files write them.
ModelConfig model_keys(const ModelSpec& model);

/// Returns `config` with `layers` in place of its layers, without the keys of blocks that none of
/// them has.
ModelConfig with_layers(ModelConfig config, const LayerPattern& layers);

/// Returns `config` with the scaling of the model's rotary frequencies.
ModelConfig with_rope_scaling(ModelConfig config, const ModelSpec& model);

/// Keys of section [model] that change the model of its preset, such as "layers" and "width" of a
/// run file used with `--set model.preset=llama-8b`. Empty without a preset. Throws ConfigError if
/// there is no such preset.
std::vector<std::string> changed_keys_of_preset(const ModelConfig& config);

}  // namespace braid
