#include "hugging_face/read_models.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace braid {
namespace {

using nlohmann::json;

/// Keys that classes of layers with states share, but for the sizes of heads.
void read_states(ConfigKeys& keys, ModelSpec& model, int64_t usual_groups, int64_t usual_chunk) {
  model.width = keys.size("hidden_size", kMaxSize);
  model.mamba_n_groups = keys.size("n_groups", kMaxHeads, usual_groups);
  model.conv_kernel = keys.size("conv_kernel", 1024, 4);
  model.mamba_chunk_size = keys.size("chunk_size", kMaxHeadSize, usual_chunk);
  model.vocabulary = keys.size("vocab_size", kMaxSize);
  model.tied_embeddings = keys.flag("tie_word_embeddings", false);
  model.norm_epsilon = keys.number("layer_norm_epsilon", 1e-5, 0, 1);
  keys.require_flag("use_bias", false, false);
  keys.require_flag("use_conv_bias", true, true);
  // Of fresh weights, of caches, and of residuals in float32 beside other types.
  for (const char* const key : {"time_step_rank", "time_step_max", "time_step_floor",
                                "rescale_prenorm_residual", "residual_in_fp32", "expand"}) {
    keys.value_of(key);
  }
}

/// A list of two numbers. The second may be infinite: {"__float__": "Infinity"} or, where
/// `parse_hf_config` put it, null.
void read_step_limits(ConfigKeys& keys, ModelSpec& model) {
  const std::string key = "time_step_limit";
  const json& limits = keys.value_of(key);
  if (limits.is_null()) {
    return;
  }
  if (!limits.is_array() || limits.size() != 2) {
    keys.refuse(key, limits, "must be a list of two numbers");
  }
  model.mamba_dt_min = keys.checked_number(key, limits[0], 0.0, 0, 1e6);
  const bool is_infinite = limits[1].is_null() || limits[1].is_object() ||
                           (limits[1].is_number() && limits[1].get<double>() > 1e30);
  model.mamba_dt_max = is_infinite ? 0.0 : keys.checked_number(key, limits[1], 0.0, 1e-30, 1e30);
}

char letter_of(ConfigKeys& keys, const json& list, const json& name) {
  constexpr std::array<std::pair<std::string_view, char>, 6> kNames = {{{"linear_attention", 'M'},
                                                                        {"mamba", 'M'},
                                                                        {"full_attention", '*'},
                                                                        {"attention", '*'},
                                                                        {"mlp", '-'},
                                                                        {"moe", 'E'}}};
  const auto* const found =
      std::ranges::find_if(kNames, [&](const auto& known) { return name == known.first; });
  if (found == kNames.end()) {
    keys.refuse("layers_block_type", list, "braid knows no layer {}", ConfigKeys::shown(name));
  }
  return found->second;
}

/// "hybrid_override_pattern", or as of transformers 5 a list of names "layers_block_type".
LayerPattern nemotron_h_layers(ConfigKeys& keys) {
  const json& list = keys.value_of("layers_block_type");
  const json& pattern = keys.value_of("hybrid_override_pattern");
  std::string letters;
  if (list.is_array()) {
    for (const json& name : list) {
      letters += letter_of(keys, list, name);
    }
  } else if (pattern.is_string()) {
    letters = pattern.get<std::string>();
  }
  const std::string key = list.is_array() ? "layers_block_type" : "hybrid_override_pattern";
  if (letters.empty() || letters.size() > static_cast<size_t>(kMaxLayers) ||
      letters.find_first_not_of("M*-E") != std::string::npos) {
    keys.refuse(key, keys.value_of(key), "must be 1 to {} layers of M, *, - and E", kMaxLayers);
  }
  return LayerPattern::parse(letters);
}

void read_nemotron_h_experts(ConfigKeys& keys, ModelSpec& model) {
  model.experts = keys.size("n_routed_experts", kMaxExperts, 8);
  model.experts_per_token = keys.size("num_experts_per_tok", kMaxExperts, 2);
  model.expert_ffn = keys.size("moe_intermediate_size", kMaxSize, 7688);
  model.shared_ffn = keys.size("moe_shared_expert_intermediate_size", kMaxSize, 7688);
  keys.require_none("moe_latent_size", "braid has no latents in front of experts");
  model.router = {.sigmoid = true,
                  .normalize = keys.flag("norm_topk_prob", true),
                  .scale = keys.number("routed_scaling_factor", 1.0, 0, 1000),
                  .bias = true,
                  .groups = keys.size("n_group", kMaxExperts, 1),
                  .kept_groups = keys.size("topk_group", kMaxExperts, 1)};
}

/// Of steps, caches, generation, and of layers that the model does not have.
void ignore_unused_keys(ConfigKeys& keys) {
  for (const char* const key : {"time_step_limit",
                                "use_mamba_kernels",
                                "mamba_ssm_cache_dtype",
                                "num_logits_to_keep",
                                "intermediate_size",
                                "n_routed_experts",
                                "n_shared_experts",
                                "moe_intermediate_size",
                                "moe_latent_size",
                                "moe_shared_expert_intermediate_size",
                                "moe_shared_expert_overlap",
                                "num_experts_per_tok",
                                "routed_scaling_factor",
                                "n_group",
                                "topk_group",
                                "norm_topk_prob",
                                "output_router_logits",
                                "num_nextn_predict_layers",
                                "mtp_layers_block_type",
                                "mtp_hybrid_override_pattern",
                                "num_hidden_layers"}) {
    keys.value_of(key);
  }
}

}  // namespace

ModelSpec read_mamba2(ConfigKeys& keys) {
  ModelSpec model;
  read_states(keys, model, 8, 256);
  model.layers = {keys.size("num_hidden_layers", kMaxLayers, 64),
                  {.mixer = &kMambaBlock, .feed_forward = nullptr}};
  model.mamba_num_heads = keys.size("num_heads", kMaxHeads, 128);
  model.mamba_head_dim = keys.size("head_dim", kMaxHeadSize, 64);
  model.ssm_state_size = keys.size("state_size", kMaxHeadSize, 128);
  model.init_std = keys.number("initializer_range", 0.1, 0, 10);
  read_step_limits(keys, model);
  keys.value_of("time_step_min");  // of fresh weights
  keys.require_text("hidden_act", {"silu", "swish"});
  keys.require_flag("rms_norm", true, true);
  return model;
}

ModelSpec read_nemotron_h(ConfigKeys& keys) {
  ModelSpec model;
  read_states(keys, model, 8, 128);
  model.layers = nemotron_h_layers(keys);
  model.mamba_num_heads = keys.size("mamba_num_heads", kMaxHeads, 128);
  model.mamba_head_dim = keys.size("mamba_head_dim", kMaxHeadSize, 64);
  model.ssm_state_size = keys.size("ssm_state_size", kMaxHeadSize, 128);
  model.mamba_dt_min = keys.number("time_step_min", 0.001, 0, 1e6);
  model.heads = keys.size("num_attention_heads", kMaxHeads, 32);
  model.kv_heads = keys.size("num_key_value_heads", kMaxHeads, 8);
  model.head_size = keys.size(
      keys.value_of("head_dim").is_null() ? "attention_head_dim" : "head_dim", kMaxHeadSize, 128);
  model.max_positions = keys.size("max_position_embeddings", kMaxSize, 4096);
  model.init_std = keys.number("initializer_range", 0.02, 0, 10);
  keys.require_text("mamba_hidden_act", {"silu", "swish"});
  keys.require_text("mlp_hidden_act", {"relu2"});
  for (const char* const key : {"attention_bias", "mlp_bias", "mamba_proj_bias"}) {
    keys.require_flag(key, false, false);
  }
  if (model.layers.has(kMlpBlock)) {
    model.ffn = keys.size("intermediate_size", kMaxSize, 21504);
  }
  if (model.layers.has(kMoeBlock)) {
    read_nemotron_h_experts(keys, model);
  }
  ignore_unused_keys(keys);
  return model;
}

}  // namespace braid
