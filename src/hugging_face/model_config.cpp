#include "hugging_face/model_config.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/text.h"
#include "hugging_face/read_models.h"

namespace braid {
namespace {

using nlohmann::json;

const HfClass& class_of_file(ConfigKeys& keys) {
  const json& type = keys.value_of("model_type");
  const std::span<const HfClass> classes = hf_classes();
  const auto found =
      std::ranges::find_if(classes, [&](const HfClass& known) { return type == known.model_type; });
  if (found == classes.end()) {
    std::vector<std::string_view> names;
    std::ranges::transform(classes, std::back_inserter(names), &HfClass::model_type);
    keys.refuse("model_type", type, "only {} can be imported", join(names, ", "));
  }
  const json& architectures = keys.value_of("architectures");
  if (!architectures.is_null() && architectures != json::array({found->architecture})) {
    keys.refuse("architectures", architectures, "braid imports only [\"{}\"] of model_type \"{}\"",
                found->architecture, found->model_type);
  }
  return *found;
}

ModelSpec model_of(ConfigKeys& keys, const HfClass& type) {
  switch (type.naming) {
    case HfNaming::kGpt2:
      return read_gpt2(keys);
    case HfNaming::kDeepseek:
      return read_deepseek(keys, type);
    case HfNaming::kBackbone:
      return type.style == kMamba2Style ? read_mamba2(keys) : read_nemotron_h(keys);
    case HfNaming::kGemma3:
      return read_gemma3(keys, type);
    case HfNaming::kLlama:
    case HfNaming::kMixtral:
    case HfNaming::kPhi3:
      return read_llama(keys, type);
  }
  throw_internal_error("no class of models");
}

void refuse_quantization(ConfigKeys& keys) {
  const json& quantization = keys.value_of("quantization_config");
  if (!quantization.is_null()) {
    keys.refuse("quantization_config", quantization, "quantized weights cannot be imported");
  }
}

}  // namespace

HfConfig parse_hf_config(std::string_view text, std::string_view path) {
  ConfigKeys keys(text, path);
  const HfClass& type = class_of_file(keys);
  ModelSpec model = model_of(keys, type);
  model.style = type.style;
  model.qkv_bias = type.qkv_bias;
  refuse_quantization(keys);
  try {
    check_model(model);
    hf_tensors(model);
  } catch (const ConfigError& error) {
    keys.refuse_model(error.what());
  }
  return {.model = std::move(model), .ignored = keys.ignored()};
}

}  // namespace braid
