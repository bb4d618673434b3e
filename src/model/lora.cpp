#include "model/lora.h"

#include <fnmatch.h>

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"
#include "model/blocks/registry.h"
#include "model/parameters.h"

namespace braid {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";

bool matches(const std::string& pattern, std::string_view matrix) {
  return fnmatch(pattern.c_str(), std::string(matrix).c_str(), 0) == 0;
}

/// Of all matrices that may have adapters, in forward order.
std::vector<std::string> matrix_names(const ModelSpec& spec) {
  std::vector<std::string> names;
  for (const Parameter& parameter : model_parameters(base_model(spec))) {
    for (const std::string_view matrix : parameter.matrices) {
      if (std::ranges::find(names, matrix) == names.end()) {
        names.emplace_back(matrix);
      }
    }
  }
  return names;
}

}  // namespace

bool LoraSpec::adapts(std::string_view matrix) const {
  return is_on() && std::ranges::any_of(targets, [&](const std::string& pattern) {
           return matches(pattern, matrix);
         });
}

std::string lora_a_name(std::string_view site) {
  return fmt::format("{}.lora_a{}", site, kWeightSuffix);
}

std::string lora_b_name(std::string_view site, std::string_view matrix) {
  return fmt::format("{}.lora_b.{}{}", site, matrix, kWeightSuffix);
}

std::string lora_magnitude_name(std::string_view site) {
  return fmt::format("{}.lora_magnitude{}", site, kWeightSuffix);
}

std::vector<AdaptedMatrix> adapted_matrices(const LoraSpec& lora, const Parameter& weight) {
  const std::string_view site =
      std::string_view(weight.name).substr(0, weight.name.size() - kWeightSuffix.size());
  const auto count = std::ssize(weight.matrices);
  std::vector<AdaptedMatrix> found;
  int64_t row = 0;
  for (size_t i = 0; i < weight.matrices.size(); ++i) {
    const std::string_view name = weight.matrices[i];
    const int64_t num_rows = weight.heads.empty() ? weight.shape[0] / count
                                                  : weight.heads[i].heads * weight.heads[i].rows;
    if (lora.adapts(name)) {
      found.push_back({.name = name,
                       .first_row = weight.gate_up_rows ? static_cast<int64_t>(i) : row,
                       .row_stride = weight.gate_up_rows ? count : 1,
                       .num_rows = num_rows,
                       .a_row = std::ssize(found) * lora.rank,
                       .a = lora_a_name(site),
                       .b = lora_b_name(site, name),
                       .magnitude = lora.magnitudes ? lora_magnitude_name(site) : std::string()});
    }
    row += num_rows;
  }
  return found;
}

void check_lora(const ModelSpec& spec) {
  if (!spec.lora.is_on()) {
    return;
  }
  for (const BlockDefinition* const block : all_blocks()) {
    if (spec.layers.has(*block) && !block->takes_adapters) {
      throw_config_error(
          "lora.rank = {}: attention and mlp have adapters, but model.pattern has {}; set "
          "lora.rank = 0",
          spec.lora.rank, quote(block->name));
    }
  }
  if (spec.mtp_depth > 0) {
    throw_config_error(
        "lora.rank = {}: layers of multi-token prediction have no adapters; set model.mtp_depth = "
        "0 "
        "instead of {}",
        spec.lora.rank, spec.mtp_depth);
  }
  const std::vector<std::string> names = matrix_names(spec);
  for (const std::string& target : spec.lora.targets) {
    if (std::ranges::none_of(names,
                             [&](const std::string& name) { return matches(target, name); })) {
      throw_config_error("lora.targets: no matrix of the model is called {}; they are {}",
                         quote(target), join(names, ", "));
    }
  }
}

ModelSpec base_model(ModelSpec spec) {
  spec.lora = {};
  return spec;
}

}  // namespace braid
