#include "hugging_face/read_models.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hugging_face/rope_config.h"

namespace braid {
namespace {

using nlohmann::json;

void read_latents(ConfigKeys& keys, ModelSpec& model) {
  const json& kv_heads = keys.value_of("num_key_value_heads");
  if (!kv_heads.is_null() && kv_heads != model.heads) {
    keys.refuse("num_key_value_heads", kv_heads, "latent attention has one for each of {} heads",
                model.heads);
  }
  keys.value_of("head_dim");     // qk_rope_head_dim again
  keys.value_of("qk_head_dim");  // their sum
  // A missing key has the default, and null means that there is no latent.
  const bool has_latent = !keys.has("q_lora_rank") || !keys.value_of("q_lora_rank").is_null();
  model.q_lora_rank = has_latent ? keys.size("q_lora_rank", kMaxSize, 1536) : 0;
  model.kv_lora_rank = keys.size("kv_lora_rank", kMaxSize, 512);
  model.qk_nope_head_dim = keys.size("qk_nope_head_dim", kMaxHeadSize, 128);
  model.qk_rope_head_dim = keys.size("qk_rope_head_dim", kMaxHeadSize, 64);
  model.v_head_dim = keys.size("v_head_dim", kMaxHeadSize, 128);
}

void read_deepseek_router(ConfigKeys& keys, ModelSpec& model, const HfClass& type) {
  const json& method = keys.value_of("topk_method");
  keys.require_text("topk_method",
                    type.sigmoid ? std::vector<std::string>{"noaux_tc"}
                                 : std::vector<std::string>{"greedy", "group_limited_greedy"});
  keys.require_text("scoring_func", {type.sigmoid ? "sigmoid" : "softmax"});
  if (!type.sigmoid) {
    keys.require_flag("norm_topk_prob", false, false);
  }
  model.router = {.sigmoid = type.sigmoid,
                  .normalize = type.sigmoid && keys.flag("norm_topk_prob", true),
                  .scale = keys.number("routed_scaling_factor", type.sigmoid ? 2.5 : 1.0, 0, 1000),
                  .bias = type.sigmoid};
  const int64_t groups = keys.size("n_group", kMaxExperts, type.sigmoid ? 8 : 1);
  const int64_t kept = keys.size("topk_group", kMaxExperts, type.sigmoid ? 4 : 1);
  if (type.sigmoid || method == "group_limited_greedy") {  // greedy ones ignore the groups
    model.router.groups = groups;
    model.router.kept_groups = kept;
  }
}

void read_deepseek_experts(ConfigKeys& keys, ModelSpec& model, const HfClass& type) {
  const int64_t dense = keys.count("first_k_dense_replace", kMaxLayers, type.sigmoid ? 3 : 0);
  const int64_t all = keys.size("num_hidden_layers", kMaxLayers);
  std::vector<LayerSpec> layers(static_cast<size_t>(all),
                                {.mixer = &kMlaBlock, .feed_forward = &kMoeBlock});
  std::fill_n(layers.begin(), std::min(dense, all), LayerSpec{.mixer = &kMlaBlock});
  model.layers = LayerPattern(std::move(layers));
  model.experts = keys.size("n_routed_experts", kMaxSize);
  model.experts_per_token = keys.size("num_experts_per_tok", kMaxSize);
  model.expert_ffn = keys.size("moe_intermediate_size", kMaxSize);
  model.shared_ffn =
      keys.size("n_shared_experts", kMaxExperts, type.sigmoid ? 1 : 2) * model.expert_ffn;
  if (keys.value_of("moe_layer_freq") != 1) {
    keys.require_none("moe_layer_freq", "braid supports only 1");
  }
  keys.value_of("num_nextn_predict_layers");  // files may lack them: stored_mtp_depth
  keys.value_of("ep_size");
  read_deepseek_router(keys, model, type);
}

}  // namespace

/// V2 has no key for the layout of rotated pairs, and V3's may have only one value here.
ModelSpec read_deepseek(ConfigKeys& keys, const HfClass& type) {
  ModelSpec model;
  model.width = keys.size("hidden_size", kMaxSize);
  model.heads = keys.size("num_attention_heads", kMaxHeads);
  read_latents(keys, model);
  read_deepseek_experts(keys, model, type);
  if (model.layers.has(kMlpBlock)) {
    model.ffn = keys.size("intermediate_size", kMaxSize);
  }
  model.vocabulary = keys.size("vocab_size", kMaxSize);
  model.max_positions = keys.size("max_position_embeddings", kMaxSize, type.sigmoid ? 4096 : 2048);
  model.tied_embeddings = keys.flag("tie_word_embeddings", false);
  read_rope(keys, model, 10000.0);
  model.norm_epsilon = keys.number("rms_norm_eps", 1e-6, 0, 1);
  model.init_std = keys.number("initializer_range", 0.02, 0, 10);
  keys.require_text("hidden_act", {"silu"});
  keys.require_flag("rope_interleave", true, true);
  keys.require_flag("attention_bias", false, false);
  keys.require_flag("mlp_bias", false, false);
  return model;
}

}  // namespace braid
