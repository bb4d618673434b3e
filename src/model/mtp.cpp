#include "model/mtp.h"

#include "base/errors.h"
#include "model/blocks/registry.h"
#include "model/families.h"

namespace braid {

const LayerSpec& mtp_layer(const ModelSpec& spec) {
  return spec.layers[spec.layers.size() - 1];
}

std::string mtp_unit(int64_t index) {
  return fmt::format("mtp.{}", index);
}

int32_t mtp_layer_number(const ModelSpec& spec, int64_t index) {
  return static_cast<int32_t>(spec.layers.size() + index);
}

std::string mtp_value(int64_t index, std::string_view name) {
  return fmt::format("{}.{}", mtp_unit(index), name);
}

double mtp_weight(const ModelSpec& spec) {
  return spec.mtp_loss_weight / static_cast<double>(spec.mtp_depth);
}

void check_mtp(const ModelSpec& spec) {
  if (spec.mtp_depth < 0) {
    throw_config_error("model.mtp_depth = {}: must be at least 0", spec.mtp_depth);
  }
  if (spec.mtp_depth == 0) {
    return;
  }
  if (!(spec.mtp_loss_weight > 0)) {
    throw_config_error(
        "model.mtp_loss_weight = {}: must be above 0; set model.mtp_depth = 0 to train without "
        "multi-token prediction",
        spec.mtp_loss_weight);
  }
  if (spec.style.positions == PositionKind::kLearned) {
    throw_config_error(
        "model.mtp_depth = {}: a {} model has learned positions, which multi-token prediction does "
        "not look up; set model.mtp_depth = 0",
        spec.mtp_depth, family_name(spec.style));
  }
}

void add_mtp_parameters(ParameterList& list, const ModelSpec& spec) {
  const ParameterList::Linear projection{
      .out = spec.width, .in = spec.width, .split = TensorSplit::kNorm};
  for (int64_t index = 0; index < spec.mtp_depth; ++index) {
    list.enter(mtp_unit(index), mtp_layer_number(spec, index));
    list.norm("embedding_norm");
    list.norm("hidden_norm");
    list.linear("embedding_projection", projection);
    list.linear("hidden_projection", projection);
    mtp_layer(spec).for_each_block(
        [&](const BlockDefinition& block) { add_block_parameters(list, spec, block); });
    list.norm("norm");
  }
}

BlockCost mtp_cost(const ModelSpec& spec, int64_t sequence) {
  BlockCost cost;
  if (spec.mtp_depth > 0) {
    const auto width = static_cast<double>(spec.width);
    BlockCost depth = layer_cost(spec, mtp_layer(spec), sequence);
    depth.weights += 2 * width * width + width * static_cast<double>(spec.vocabulary);
    cost.add(depth, static_cast<double>(spec.mtp_depth));
  }
  return cost;
}

ModelSpec without_mtp(ModelSpec spec) {
  spec.mtp_depth = 0;
  return spec;
}

}  // namespace braid
