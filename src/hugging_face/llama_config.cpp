#include "hugging_face/read_models.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "hugging_face/rope_config.h"
#include "hugging_face/window_config.h"

namespace braid {
namespace {

using nlohmann::json;

/// Values of missing keys, where classes differ.
struct Defaults {
  int64_t head_size = 0;  ///< 0: hidden_size / num_attention_heads
  int64_t max_positions = 2048;
  double theta = 10000.0;
  double epsilon = 1e-6;
};

Defaults defaults_of(const HfClass& type) {
  if (type.model_type == "mixtral") {
    return {.max_positions = 131072, .theta = 1000000.0, .epsilon = 1e-5};
  }
  if (type.model_type == "olmoe") {
    return {.max_positions = 4096, .epsilon = 1e-5};
  }
  if (type.model_type.ends_with("istral")) {
    return {.max_positions = 131072};
  }
  if (type.model_type == "phi3") {
    return {.max_positions = 4096, .epsilon = 1e-5};
  }
  if (type.model_type == "qwen3") {
    return {.head_size = 128, .max_positions = 32768};
  }
  return {.max_positions = type.model_type == "llama" ? 2048 : 32768};
}

/// Every decoder_sparse_step-th layer has experts, unless mlp_only_layers names it.
LayerPattern expert_layers(ConfigKeys& keys, int64_t count, const HfClass& type) {
  const LayerSpec experts{.feed_forward = &kMoeBlock};
  if (!type.some_mlps) {
    return {count, experts};
  }
  const int64_t step = keys.size("decoder_sparse_step", kMaxLayers, 1);
  const json& dense = keys.value_of("mlp_only_layers");
  if (!dense.is_null() && !dense.is_array()) {
    keys.refuse("mlp_only_layers", dense, "must be a list of layers");
  }
  std::vector<LayerSpec> layers;
  for (int64_t layer = 0; layer < count; ++layer) {
    const bool is_dense =
        (layer + 1) % step != 0 ||
        (dense.is_array() && std::find(dense.begin(), dense.end(), layer) != dense.end());
    layers.push_back(is_dense ? LayerSpec() : experts);
  }
  return LayerPattern(std::move(layers));
}

void read_experts(ConfigKeys& keys, ModelSpec& model, const HfClass& type) {
  const bool is_mixtral = type.naming == HfNaming::kMixtral;
  model.layers = expert_layers(keys, model.layers.size(), type);
  // As of transformers 5, Qwen3's files have Mixtral's key.
  const bool is_local = is_mixtral || !keys.value_of("num_local_experts").is_null();
  model.experts = keys.size(is_local ? "num_local_experts" : "num_experts", kMaxSize);
  model.experts_per_token = keys.size("num_experts_per_tok", kMaxSize);
  model.expert_ffn =
      keys.size(type.some_mlps ? "moe_intermediate_size" : "intermediate_size", kMaxSize);
  if (type.shared_expert) {
    model.shared_ffn = keys.size("shared_expert_intermediate_size", kMaxSize);
    model.shared_gate = true;
    keys.require_flag("qkv_bias", true, true);
  }
  model.router.normalize = is_mixtral || keys.flag("norm_topk_prob", false);
  keys.require_none("router_jitter_noise", "braid adds no noise to a router's input");
  keys.require_none("clip_qkv", "braid does not clip queries, keys and values");
}

}  // namespace

ModelSpec read_llama(ConfigKeys& keys, const HfClass& type) {
  const Defaults defaults = defaults_of(type);
  ModelSpec model;
  model.layers = keys.size("num_hidden_layers", kMaxLayers);
  model.width = keys.size("hidden_size", kMaxSize);
  model.heads = keys.size("num_attention_heads", kMaxHeads);
  model.kv_heads = keys.size("num_key_value_heads", kMaxHeads, model.heads);
  model.head_size =
      keys.size("head_dim", kMaxHeadSize,
                defaults.head_size != 0 ? defaults.head_size
                                        : std::max<int64_t>(1, model.width / model.heads));
  if (type.experts) {
    read_experts(keys, model, type);
  }
  if (model.layers.has(kMlpBlock)) {
    model.ffn = keys.size("intermediate_size", kMaxSize);
  }
  model.vocabulary = keys.size("vocab_size", kMaxSize);
  model.max_positions = keys.size("max_position_embeddings", kMaxSize, defaults.max_positions);
  model.tied_embeddings = keys.flag("tie_word_embeddings", false);
  if (type.naming == HfNaming::kPhi3) {
    read_phi3_rope(keys, model, defaults.theta, defaults.max_positions);
  } else {
    read_rope(keys, model, defaults.theta);
    refuse_partial_rotation(keys);
  }
  model.norm_epsilon = keys.number("rms_norm_eps", defaults.epsilon, 0, 1);
  model.init_std = keys.number("initializer_range", 0.02, 0, 10);
  keys.require_text("hidden_act", {"silu"});
  read_windows(keys, model, type);
  if (!type.qkv_bias) {
    keys.require_flag("attention_bias", false, false);
    keys.require_flag("mlp_bias", false, false);
  }
  return model;
}

}  // namespace braid
