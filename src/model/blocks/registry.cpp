#include "model/blocks/registry.h"

#include <algorithm>
#include <array>

#include "base/errors.h"

// Each is defined in a folder of its own, variants in that of their block.
// clang-format off
#define BRAID_BLOCKS(block) \
  block(kAttentionBlock)    \
  block(kSlidingBlock)      \
  block(kMlaBlock)          \
  block(kMambaBlock)        \
  block(kMlpBlock)          \
  block(kMoeBlock)
// clang-format on

#define BRAID_DECLARE_BLOCK(block) extern const BlockDefinition block;
#define BRAID_ADDRESS_OF_BLOCK(block) &(block),

namespace braid {

BRAID_BLOCKS(BRAID_DECLARE_BLOCK)

namespace {

constexpr std::array kBlocks = {BRAID_BLOCKS(BRAID_ADDRESS_OF_BLOCK)};

}  // namespace

void BlockCost::add(const BlockCost& other, double times) {
  weights += times * other.weights;
  mixing += times * other.mixing;
  mixing_backward += times * other.mixing_backward;
  kept_elems += times * other.kept_elems;
  widest = std::max(widest, other.widest);
}

std::span<const BlockDefinition* const> all_blocks() {
  return kBlocks;
}

const BlockDefinition* find_block(std::string_view name) {
  const auto* const found = std::ranges::find(kBlocks, name, &BlockDefinition::name);
  return found == kBlocks.end() ? nullptr : *found;
}

namespace {

std::string_view name_of_weights(const BlockDefinition& block) {
  return block.variant_of.empty() ? block.name : block.variant_of;
}

}  // namespace

std::string norm_name(const BlockDefinition& block) {
  return fmt::format("{}_norm", name_of_weights(block));
}

std::string post_norm_name(const BlockDefinition& block) {
  return fmt::format("{}_post_norm", name_of_weights(block));
}

void add_block_parameters(ParameterList& list, const ModelSpec& spec,
                          const BlockDefinition& block) {
  list.norm(norm_name(block));
  block.add_parameters(list, spec);
  if (spec.post_norms) {
    list.norm(post_norm_name(block));
  }
}

BlockCost layer_cost(const ModelSpec& spec, const LayerSpec& layer, int64_t sequence) {
  BlockCost cost;
  layer.for_each_block([&](const BlockDefinition& block) { cost.add(block.cost(spec, sequence)); });
  return cost;
}

BlockCost model_cost(const ModelSpec& spec, int64_t sequence) {
  BlockCost cost;
  for (const LayerSpec& kind : spec.layers.kinds()) {
    const auto layers = std::ranges::count(spec.layers, kind);
    cost.add(layer_cost(spec, kind, sequence), static_cast<double>(layers));
  }
  return cost;
}

void require_positive_size(std::string_view key, int64_t value) {
  if (value < 1) {
    throw_config_error("model.{} = {}: must be at least 1", key, value);
  }
}

}  // namespace braid
