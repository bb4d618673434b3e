#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/tensor_index.h"
#include "model/hf_tensors.h"
#include "model/model_spec.h"

/// Models in the format of Hugging Face transformers: a folder with config.json and safetensors.
/// Supported: LlamaForCausalLM, MistralForCausalLM, MinistralForCausalLM, Qwen2ForCausalLM,
/// Qwen2MoeForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, MixtralForCausalLM,
/// OlmoeForCausalLM, Phi3ForCausalLM, Gemma3ForCausalLM, DeepseekV2ForCausalLM,
/// DeepseekV3ForCausalLM, Mamba2ForCausalLM, NemotronHForCausalLM, GPT2LMHeadModel.
namespace braid {

/// The elements of the tensor's parameter, in row order: one run per row, HfTensor::pitch apart, or
/// a single run if no other rows lie between.
PieceRange piece_range(const HfTensor& tensor);

/// All tensors in forward order. Throws ConfigError naming the key if no Hugging Face class
/// computes this model.
std::vector<HfTensor> hf_tensors(const ModelSpec& model, HfExperts experts = HfExperts::kSeparate);

/// How a folder with tensors of these names holds experts.
HfExperts experts_of_files(std::span<const std::string> names);

/// Which layers of a class's models may have sliding windows.
enum class HfWindows : uint8_t {
  kNone,
  kAll,   ///< all layers have, or none: Mistral
  kSome,  ///< those that config.json names (layer_types)
};

/// The names by which transformers identifies a kind of model.
struct HfClass {
  std::string_view architecture;  ///< "GPT2LMHeadModel"
  std::string_view model_type;    ///< "gpt2"
  HfNaming naming = HfNaming::kLlama;
  ModelStyle style;
  bool qkv_bias = false;
  bool experts = false;    ///< layers have experts in place of an MLP
  bool some_mlps = false;  ///< all but those that config.json names (mlp_only_layers)
  bool shared_expert =
      false;  ///< beside the experts; with a gate but for DeepSeek's and Nemotron's
  const BlockDefinition* mixer = &kAttentionBlock;
  bool sigmoid = false;  ///< routers have sigmoids and biases: DeepSeek-V3, Nemotron
  std::span<const LayerSpec> layers = {};  ///< the kinds of layers, of HfNaming::kBackbone
  HfWindows windows = HfWindows::kNone;
};
std::span<const HfClass> hf_classes();

/// The class that computes this model. Throws ConfigError if none does because of its layers or
/// their style.
const HfClass& hf_class(const ModelSpec& model);

/// Whether files of the class may hold a tensor of that name that is not a parameter: masks and
/// frequencies stored by old versions.
bool is_hf_buffer(std::string_view name);

/// Whether files of the model's class hold layers of multi-token prediction: DeepSeek-V3's.
bool has_hf_mtp(const ModelSpec& model);

/// Whether it is the name of a tensor of DeepSeek's layers behind the last one, which predict more
/// tokens (model/mtp.h). transformers does without them.
bool is_hf_prediction_layer(const ModelSpec& model, std::string_view name);

/// How many such layers are there, by the names of all tensors.
int64_t stored_mtp_depth(const ModelSpec& model, std::span<const std::string> names);

}  // namespace braid
