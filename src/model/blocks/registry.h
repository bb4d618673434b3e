#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/blocks/block.h"

namespace braid {

std::span<const BlockDefinition* const> all_blocks();

/// The block of that name; null if there is none.
const BlockDefinition* find_block(std::string_view name);

/// "attention_norm": the site and the parameters of the norm in front of the block.
std::string norm_name(const BlockDefinition& block);

/// "attention_post_norm": the same of the one behind it (ModelSpec::post_norms).
std::string post_norm_name(const BlockDefinition& block);

/// Adds the norms of the block and its parameters to the unit of its layer.
void add_block_parameters(ParameterList& list, const ModelSpec& spec, const BlockDefinition& block);

/// Cost of one layer, and of all layers, without embedding and head.
BlockCost layer_cost(const ModelSpec& spec, const LayerSpec& layer, int64_t sequence);
BlockCost model_cost(const ModelSpec& spec, int64_t sequence);

/// For BlockDefinition::check_sizes: throws ConfigError if model.`key` is below 1.
void require_positive_size(std::string_view key, int64_t value);

}  // namespace braid
