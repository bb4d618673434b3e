#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/errors.h"
#include "hugging_face/model_config.h"
#include "hugging_face/tensor_names.h"

namespace braid {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// Both names of the type: "type" is what older code reads. Values that mean "not given" are left
/// out, and so is `truncate` where it is what every version does.
ordered_json rope_json(RopeScaling scaling) {
  if (scaling.type == RopeType::kDefault) {
    return nullptr;
  }
  const std::string_view type = rope_type_name(scaling.type);
  ordered_json rope = {{"rope_type", type}, {"type", type}};
  scaling.parameters([&](const char* name, auto& value) {
    using Value = std::remove_reference_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::string>) {
      rope[name] = rope_factors(value);
    } else {
      const bool is_usual = std::is_same_v<Value, bool> ? value == true : value == Value(0);
      if (!is_usual) {
        rope[name] = value;
      }
    }
  });
  return rope;
}

/// The other number of positions and the rotated part are beside the scaling. Some versions want no
/// keys but these of longrope, and its factor follows from the positions.
void add_phi3_rope(ordered_json& root, const ModelSpec& model) {
  const RopeScaling& scaling = model.rope_scaling;
  root["partial_rotary_factor"] = model.partial_rotary_factor;
  root["original_max_position_embeddings"] = scaling.type == RopeType::kLongrope
                                                 ? scaling.original_max_position_embeddings
                                                 : std::max<int64_t>(1, model.max_positions);
  if (scaling.type == RopeType::kLongrope) {
    ordered_json& rope = root["rope_scaling"];
    rope.erase("rope_type");
    rope.erase("original_max_position_embeddings");
    if (scaling.factor * static_cast<double>(scaling.original_max_position_embeddings) ==
        static_cast<double>(model.max_positions)) {
      rope.erase("factor");
    }
  }
}

void add_experts(ordered_json& root, const ModelSpec& model) {
  const HfClass& type = hf_class(model);
  const bool is_mixtral = type.naming == HfNaming::kMixtral;
  root[is_mixtral ? "num_local_experts" : "num_experts"] = model.experts;
  root["num_experts_per_tok"] = model.experts_per_token;
  if (type.shared_expert) {
    root["shared_expert_intermediate_size"] = model.shared_ffn;
  }
  if (!is_mixtral) {
    root["norm_topk_prob"] = model.router.normalize;
  }
  if (!type.some_mlps) {
    root["intermediate_size"] = model.expert_ffn;
    return;
  }
  root["moe_intermediate_size"] = model.expert_ffn;
  root["decoder_sparse_step"] = 1;
  root["mlp_only_layers"] = json::array();
  for (int64_t layer = 0; layer < model.layers.size(); ++layer) {
    if (model.layers[layer].feed_forward != &kMoeBlock) {
      root["mlp_only_layers"].push_back(layer);
    }
  }
}

/// "layer_types", and what versions of transformers without them read.
void add_windows(ordered_json& root, const ModelSpec& model) {
  const HfClass& type = hf_class(model);
  const auto is_sliding = [](const LayerSpec& layer) { return layer.mixer == &kSlidingBlock; };
  if (!model.layers.has(kSlidingBlock)) {
    if (model.qkv_bias) {
      root["use_sliding_window"] = false;
    }
    return;
  }
  root["sliding_window"] = model.sliding_window;
  if (type.model_type.starts_with("qwen")) {
    root["use_sliding_window"] = true;
    root["max_window_layers"] =
        std::ranges::find_if(model.layers, is_sliding) - model.layers.begin();
  }
  if (type.windows == HfWindows::kSome) {
    root["layer_types"] = json::array();
    for (const LayerSpec& layer : model.layers) {
      root["layer_types"].push_back(is_sliding(layer) ? "sliding_attention" : "full_attention");
    }
  }
}

ordered_json llama_json(const ModelSpec& model) {
  ordered_json root = {{"hidden_size", model.width},
                       {"intermediate_size", model.ffn},
                       {"num_hidden_layers", model.layers.size()},
                       {"num_attention_heads", model.heads},
                       {"num_key_value_heads", model.kv_heads},
                       {"head_dim", model.head_size},
                       {"hidden_act", "silu"},
                       {"max_position_embeddings", std::max<int64_t>(1, model.max_positions)},
                       {"rms_norm_eps", model.norm_epsilon},
                       {"rope_theta", model.rope_theta},
                       {"rope_scaling", rope_json(model.rope_scaling)},
                       {"attention_dropout", 0.0}};
  if (model.layers.has(kMoeBlock)) {
    add_experts(root, model);
  }
  add_windows(root, model);
  if (model.style == kPhi3Style) {
    add_phi3_rope(root, model);
    root["pad_token_id"] = nullptr;  // its default is past the end of a smaller vocabulary
    root["embd_pdrop"] = 0.0;
    root["resid_pdrop"] = 0.0;
  } else if (!model.qkv_bias) {
    root["attention_bias"] = false;
    root["mlp_bias"] = false;
  }
  return root;
}

/// The largest part of the layers that "sliding_window_pattern" can say; 0 if it cannot.
int64_t window_period(const LayerPattern& layers) {
  for (int64_t period = 1; period <= layers.size() + 1; ++period) {
    bool fits = true;
    for (int64_t layer = 0; layer < layers.size() && fits; ++layer) {
      fits = (layers[layer].mixer == &kSlidingBlock) == ((layer + 1) % period != 0);
    }
    if (fits) {
      return period;
    }
  }
  return 0;
}

ordered_json gemma3_json(const ModelSpec& model) {
  ordered_json root = llama_json(model);
  root.erase("hidden_act");
  root.erase("mlp_bias");
  root["hidden_activation"] = "gelu_pytorch_tanh";
  root["query_pre_attn_scalar"] =
      model.query_pre_attn_scalar > 0 ? model.query_pre_attn_scalar : model.head_size;
  root["rope_local_base_freq"] =
      model.rope_local_base_freq > 0 ? model.rope_local_base_freq : model.rope_theta;
  root["attn_logit_softcapping"] = nullptr;
  root["final_logit_softcapping"] = nullptr;
  root["pad_token_id"] = nullptr;  // transformers does not train the embedding of its default
  if (!root.contains("layer_types")) {
    root["layer_types"] =
        std::vector<std::string>(static_cast<size_t>(model.layers.size()), "full_attention");
  }
  if (const int64_t period = window_period(model.layers)) {
    root["sliding_window_pattern"] = period;  // what older versions read
  }
  return root;
}

/// What transformers does not read is for the code that DeepSeek published.
void add_deepseek_router(ordered_json& root, const ModelSpec& model) {
  const RouterSpec& router = model.router;
  root["n_group"] = router.groups;
  root["topk_group"] = router.kept_groups;
  root["routed_scaling_factor"] = router.scale;
  root["norm_topk_prob"] = router.normalize;
  root["scoring_func"] = router.sigmoid ? "sigmoid" : "softmax";
  root["topk_method"] = router.sigmoid       ? "noaux_tc"
                        : router.groups == 1 ? "greedy"
                                             : "group_limited_greedy";
  if (router.sigmoid) {
    root["num_nextn_predict_layers"] = model.mtp_depth;
  }
}

ordered_json deepseek_json(const ModelSpec& model) {
  const auto dense = std::ranges::count_if(
      model.layers, [](const LayerSpec& layer) { return layer.feed_forward != &kMoeBlock; });
  ordered_json root = {{"hidden_size", model.width},
                       {"intermediate_size", std::max<int64_t>(1, model.ffn)},
                       {"num_hidden_layers", model.layers.size()},
                       {"first_k_dense_replace", dense},
                       {"num_attention_heads", model.heads},
                       {"num_key_value_heads", model.heads},
                       {"q_lora_rank", nullptr},
                       {"kv_lora_rank", model.kv_lora_rank},
                       {"qk_nope_head_dim", model.qk_nope_head_dim},
                       {"qk_rope_head_dim", model.qk_rope_head_dim},
                       {"v_head_dim", model.v_head_dim},
                       {"n_routed_experts", model.experts},
                       {"n_shared_experts", model.shared_ffn / model.expert_ffn},
                       {"num_experts_per_tok", model.experts_per_token},
                       {"moe_intermediate_size", model.expert_ffn},
                       {"moe_layer_freq", 1},
                       {"hidden_act", "silu"},
                       {"max_position_embeddings", std::max<int64_t>(1, model.max_positions)},
                       {"rms_norm_eps", model.norm_epsilon},
                       {"rope_theta", model.rope_theta},
                       {"rope_scaling", rope_json(model.rope_scaling)},
                       {"attention_bias", false},
                       {"attention_dropout", 0.0}};
  if (model.q_lora_rank > 0) {
    root["q_lora_rank"] = model.q_lora_rank;
  }
  if (model.router.sigmoid) {
    root["rope_interleave"] = true;
  }
  add_deepseek_router(root, model);
  return root;
}

/// Keys that are the same for all classes of layers with states. Their norms are one per group:
/// older versions of transformers have one for all of a Mamba2's groups.
ordered_json states_json(const ModelSpec& model) {
  return {{"hidden_size", model.width},
          {"conv_kernel", model.conv_kernel},
          {"n_groups", model.mamba_n_groups},
          {"chunk_size", model.mamba_chunk_size},
          {"use_bias", false},
          {"use_conv_bias", true},
          {"layer_norm_epsilon", model.norm_epsilon}};
}

ordered_json mamba2_json(const ModelSpec& model) {
  ordered_json root = states_json(model);
  root.update({{"num_hidden_layers", model.layers.size()},
               {"num_heads", model.mamba_num_heads},
               {"head_dim", model.mamba_head_dim},
               {"state_size", model.ssm_state_size},
               {"expand", model.mamba_num_heads * model.mamba_head_dim / model.width},
               {"hidden_act", "silu"},
               {"residual_in_fp32", true}});
  if (model.mamba_dt_min != 0 || model.mamba_dt_max != 0) {
    constexpr double kNoLimit = std::numeric_limits<float>::max();  // JSON has no infinity
    root["time_step_limit"] = {model.mamba_dt_min,
                               model.mamba_dt_max == 0 ? kNoLimit : model.mamba_dt_max};
  }
  return root;
}

/// The pattern as of transformers 4; transformers 5 reads it too.
std::string nemotron_h_pattern(const LayerPattern& layers) {
  std::string pattern;
  for (const LayerSpec& layer : layers) {
    pattern += layer.mixer == &kMambaBlock        ? 'M'
               : layer.mixer == &kAttentionBlock  ? '*'
               : layer.feed_forward == &kMoeBlock ? 'E'
                                                  : '-';
  }
  return pattern;
}

void add_nemotron_h_experts(ordered_json& root, const ModelSpec& model) {
  const RouterSpec& router = model.router;
  root.update({{"n_routed_experts", model.experts},
               {"num_experts_per_tok", model.experts_per_token},
               {"moe_intermediate_size", model.expert_ffn},
               {"n_shared_experts", 1},
               {"moe_shared_expert_intermediate_size", model.shared_ffn},
               {"n_group", router.groups},
               {"topk_group", router.kept_groups},
               {"norm_topk_prob", router.normalize},
               {"routed_scaling_factor", router.scale}});
}

ordered_json nemotron_h_json(const ModelSpec& model) {
  ordered_json root = states_json(model);
  root.update({{"hybrid_override_pattern", nemotron_h_pattern(model.layers)},
               {"num_hidden_layers", model.layers.size()},
               {"mamba_num_heads", std::max<int64_t>(1, model.mamba_num_heads)},
               {"mamba_head_dim", std::max<int64_t>(1, model.mamba_head_dim)},
               {"ssm_state_size", std::max<int64_t>(1, model.ssm_state_size)},
               {"mamba_hidden_act", "silu"},
               {"mamba_proj_bias", false},
               {"time_step_min", model.mamba_dt_min},
               {"num_attention_heads", std::max<int64_t>(1, model.heads)},
               {"num_key_value_heads", std::max<int64_t>(1, model.kv_heads)},
               {"head_dim", std::max<int64_t>(1, model.head_size)},
               {"attention_bias", false},
               {"attention_dropout", 0.0},
               {"intermediate_size", std::max<int64_t>(1, model.ffn)},
               {"mlp_hidden_act", "relu2"},
               {"mlp_bias", false},
               {"max_position_embeddings", std::max<int64_t>(1, model.max_positions)},
               {"residual_in_fp32", false}});
  if (model.layers.has(kMoeBlock)) {
    add_nemotron_h_experts(root, model);
  }
  return root;
}

/// null, an id, or a list of several.
ordered_json ids_json(const std::vector<int32_t>& ids) {
  if (ids.size() > 1) {
    return ids;
  }
  return ids.empty() ? ordered_json(nullptr) : ordered_json(ids.front());
}

ordered_json gpt2_json(const ModelSpec& model) {
  return {{"n_embd", model.width},
          {"n_inner", model.ffn},
          {"n_layer", model.layers.size()},
          {"n_head", model.heads},
          {"n_positions", model.max_positions},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0}};
}

}  // namespace

std::string print_hf_config(const ModelSpec& model, DType dtype, const HfCompanions& companions) {
  check(dtype == DType::kF32 || dtype == DType::kBF16, "no weights of dtype {}", dtype_name(dtype));
  const HfClass& names = hf_class(model);
  ordered_json root = {{"architectures", {names.architecture}}, {"model_type", names.model_type}};
  root.update(names.naming == HfNaming::kGpt2       ? gpt2_json(model)
              : names.naming == HfNaming::kDeepseek ? deepseek_json(model)
              : names.naming == HfNaming::kGemma3   ? gemma3_json(model)
              : names.naming != HfNaming::kBackbone ? llama_json(model)
              : names.style == kMamba2Style         ? mamba2_json(model)
                                                    : nemotron_h_json(model));
  root["vocab_size"] = model.vocabulary;
  root["tie_word_embeddings"] = model.tied_embeddings;
  root["initializer_range"] = model.init_std;
  root["torch_dtype"] = dtype == DType::kF32 ? "float32" : "bfloat16";
  root["use_cache"] = true;
  // Also where there is none: the class defaults are the ids of other tokenizers.
  root["bos_token_id"] = ids_json(companions.bos_ids);
  root["eos_token_id"] = ids_json(companions.eos_ids);
  return root.dump(2) + "\n";
}

}  // namespace braid
