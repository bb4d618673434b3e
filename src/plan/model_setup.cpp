#include "plan/model_setup.h"

#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "config/choices.h"
#include "model/blocks/registry.h"
#include "model/families.h"

namespace braid {
namespace {

template <class T, class From>
void override_with(T& value, const std::optional<From>& given) {
  if (given) {
    value = static_cast<T>(*given);
  }
}

void require_given(std::string_view key, int64_t value) {
  if (value == 0) {
    throw_config_error("model.{} is not given; set it, or name a model.preset", key);
  }
}

/// Applies the family. A preset keeps its biases and its head.
void set_family(ModelSpec& spec, const ModelConfig& config) {
  if (!config.family && !config.preset.empty()) {
    return;
  }
  const ModelFamily& family = config.family ? find_family(*config.family) : kModelFamilies.front();
  spec.style = family.style;
  if (config.preset.empty()) {
    spec.qkv_bias = family.qkv_bias;
    spec.tied_embeddings = family.tied_embeddings;
    spec.router.normalize = family.normalizes_weights;
    spec.norm_offset = family.norm_offset;
    spec.post_norms = family.post_norms;
    spec.scale_embedding = family.scale_embedding;
  }
}

/// As many layers of the preset's kinds: its first ones, or more of the only kind it has.
LayerPattern resized(const LayerPattern& layers, int64_t count) {
  if (layers.size() == 0) {
    return count;
  }
  if (layers.is_uniform()) {
    return {count, layers[0]};
  }
  if (count > layers.size()) {
    throw_config_error(
        "model.layers = {}: the preset has {} layers of several kinds; set model.pattern to say "
        "which kinds the others have",
        count, layers.size());
  }
  return LayerPattern(std::vector<LayerSpec>(layers.begin(), layers.begin() + count));
}

void set_layers(ModelSpec& spec, const ModelConfig& config) {
  if (config.layers) {
    spec.layers = resized(spec.layers, *config.layers);
  }
  if (!config.pattern) {
    if (config.experts && !spec.layers.has(kMoeBlock)) {
      spec.layers = spec.layers.has(kMlpBlock)
                        ? spec.layers.replaced(kMlpBlock, kMoeBlock)
                        : LayerPattern(spec.layers.size(), {.feed_forward = &kMoeBlock});
    }
    return;
  }
  spec.layers = LayerPattern::parse(*config.pattern);
  if (config.layers && *config.layers != spec.layers.size()) {
    throw_config_error("model.layers = {}: model.pattern = {} has {}; remove either key",
                       *config.layers, quote(*config.pattern, 200), spec.layers.size());
  }
}

/// A window is that of the layers with "sliding", or of all with attention if none has it. 0 makes
/// attention of "sliding".
void set_window(ModelSpec& spec, const ModelConfig& config) {
  override_with(spec.sliding_window, config.sliding_window);
  if (config.sliding_window == 0) {
    spec.layers = spec.layers.replaced(kSlidingBlock, kAttentionBlock);
  } else if (config.sliding_window && !spec.layers.has(kSlidingBlock)) {
    spec.layers = spec.layers.replaced(kAttentionBlock, kSlidingBlock);
  }
  if (spec.layers.has(kSlidingBlock)) {
    return;
  }
  if (config.sliding_window.value_or(0) > 0) {
    throw_config_error(
        "model.sliding_window = {}: no layer of model.pattern has \"attention\" or \"sliding\"; "
        "remove the key",
        spec.sliding_window);
  }
  spec.sliding_window = 0;
}

void refuse_if_given(std::string_view key, const auto& given) {
  if (given) {
    throw_config_error(
        "model.{} = {}: the model has no experts; remove the key, or set model.experts", key,
        *given);
  }
}

void refuse_latent_key(std::string_view key, const std::optional<int64_t>& given) {
  if (given) {
    throw_config_error(
        "model.{} = {}: no layer of model.pattern has \"mla\"; remove the key, or write "
        "\"mla+mlp\" for layers with latent attention",
        key, *given);
  }
}

/// The keys of latent attention with their members; `visit(name, size, given)`.
void for_each_latent_key(auto& spec, auto& config, const auto& visit) {
  visit("q_lora_rank", spec.q_lora_rank, config.q_lora_rank);
  visit("kv_lora_rank", spec.kv_lora_rank, config.kv_lora_rank);
  visit("qk_nope_head_dim", spec.qk_nope_head_dim, config.qk_nope_head_dim);
  visit("qk_rope_head_dim", spec.qk_rope_head_dim, config.qk_rope_head_dim);
  visit("v_head_dim", spec.v_head_dim, config.v_head_dim);
}

void refuse_mamba_key(std::string_view key, const auto& given) {
  if (given) {
    throw_config_error(
        "model.{} = {}: no layer of model.pattern has \"mamba\"; remove the key, or write "
        "\"mamba\" for layers with states",
        key, *given);
  }
}

/// The same for layers with states.
void for_each_mamba_key(auto& spec, auto& config, const auto& visit) {
  visit("mamba_num_heads", spec.mamba_num_heads, config.mamba_num_heads);
  visit("mamba_head_dim", spec.mamba_head_dim, config.mamba_head_dim);
  visit("ssm_state_size", spec.ssm_state_size, config.ssm_state_size);
  visit("mamba_n_groups", spec.mamba_n_groups, config.mamba_n_groups);
  visit("conv_kernel", spec.conv_kernel, config.conv_kernel);
  visit("mamba_chunk_size", spec.mamba_chunk_size, config.mamba_chunk_size);
  visit("mamba_dt_min", spec.mamba_dt_min, config.mamba_dt_min);
  visit("mamba_dt_max", spec.mamba_dt_max, config.mamba_dt_max);
}

/// The keys of rotary frequencies with their members; `visit(name, value, given)`, the name without
/// "rope_".
void for_each_rope_key(auto& scaling, auto& config, const auto& visit) {
  visit("factor", scaling.factor, config.rope_factor);
  visit("original_max_position_embeddings", scaling.original_max_position_embeddings,
        config.rope_original_max_position_embeddings);
  visit("low_freq_factor", scaling.low_freq_factor, config.rope_low_freq_factor);
  visit("high_freq_factor", scaling.high_freq_factor, config.rope_high_freq_factor);
  visit("beta_fast", scaling.beta_fast, config.rope_beta_fast);
  visit("beta_slow", scaling.beta_slow, config.rope_beta_slow);
  visit("truncate", scaling.truncate, config.rope_truncate);
  visit("mscale", scaling.mscale, config.rope_mscale);
  visit("mscale_all_dim", scaling.mscale_all_dim, config.rope_mscale_all_dim);
  visit("attention_factor", scaling.attention_factor, config.rope_attention_factor);
  visit("short_factor", scaling.short_factor, config.rope_short_factor);
  visit("long_factor", scaling.long_factor, config.rope_long_factor);
}

bool has_parameter(RopeScaling scaling, std::string_view name) {
  bool found = false;
  scaling.parameters([&](std::string_view each, auto&) { found = found || each == name; });
  return found;
}

/// "llama3 or yarn": the types with that parameter.
std::string rope_types_with(std::string_view name) {
  std::vector<std::string> types;
  for (const auto& [type_name, type] : kRopeTypes) {
    if (has_parameter({.type = type}, name)) {
      types.push_back(quote(type_name, 20));
    }
  }
  return join(types, " or ");
}

/// Another type than the preset's starts from the type's usual values.
void set_rope(ModelSpec& spec, const ModelConfig& config) {
  RopeScaling& scaling = spec.rope_scaling;
  if (spec.style.positions != PositionKind::kRope) {
    scaling = {};  // of a preset whose family the run file changes
    spec.partial_rotary_factor = 1;
  }
  override_with(spec.partial_rotary_factor, config.partial_rotary_factor);
  if (config.rope_type && choice<RopeType>(*config.rope_type) != scaling.type) {
    scaling = {.type = choice<RopeType>(*config.rope_type)};
  }
  for_each_rope_key(scaling, config, [&](std::string_view name, auto& value, const auto& given) {
    if (given && !has_parameter(scaling, name)) {
      throw_config_error(
          "model.rope_{} = {}: model.rope_type = \"{}\" has no such parameter; remove the key, or "
          "set model.rope_type = {}",
          name, *given, rope_type_name(scaling.type), rope_types_with(name));
    }
    override_with(value, given);
  });
}

/// That of a preset goes with its windows.
void set_local_base(ModelSpec& spec, const ModelConfig& config) {
  if (!spec.layers.has(kSlidingBlock)) {
    spec.rope_local_base_freq = 0;
  }
  override_with(spec.rope_local_base_freq, config.rope_local_base_freq);
}

void set_latents(ModelSpec& spec, const ModelConfig& config) {
  const bool has_latents = spec.layers.has(kMlaBlock);
  for_each_latent_key(
      spec, config, [&](std::string_view key, int64_t& size, const std::optional<int64_t>& given) {
        if (!has_latents) {
          return refuse_latent_key(key, given);
        }
        override_with(size, given);
      });
}

void set_states(ModelSpec& spec, const ModelConfig& config) {
  const bool has_states = spec.layers.has(kMambaBlock);
  for_each_mamba_key(spec, config, [&](std::string_view key, auto& value, const auto& given) {
    if (!has_states) {
      return refuse_mamba_key(key, given);
    }
    override_with(value, given);
  });
}

/// The keys of experts but for `experts`; `visit(name, given)`.
void for_each_expert_key(auto& config, const auto& visit) {
  visit("experts_per_token", config.experts_per_token);
  visit("expert_ffn", config.expert_ffn);
  visit("shared_ffn", config.shared_ffn);
  visit("shared_gate", config.shared_gate);
  visit("router_scores", config.router_scores);
  visit("router_normalize", config.router_normalize);
  visit("router_scale", config.router_scale);
  visit("router_bias", config.router_bias);
  visit("router_logit_bias", config.router_logit_bias);
  visit("router_groups", config.router_groups);
  visit("router_kept_groups", config.router_kept_groups);
}

void set_experts(ModelSpec& spec, const ModelConfig& config) {
  if (config.experts && !spec.layers.has(kMoeBlock)) {
    throw_config_error(
        "model.experts = {}: model.pattern = {} has no \"moe\"; remove either key, or write "
        "\"attention+moe\" for layers with experts",
        *config.experts, quote(spec.layers.text(), 200));
  }
  if (!spec.layers.has(kMoeBlock)) {
    return for_each_expert_key(
        config, [](std::string_view key, const auto& given) { refuse_if_given(key, given); });
  }
  override_with(spec.experts, config.experts);
  override_with(spec.experts_per_token, config.experts_per_token);
  override_with(spec.expert_ffn, config.expert_ffn);
  override_with(spec.shared_ffn, config.shared_ffn);
  override_with(spec.shared_gate, config.shared_gate);
  if (config.router_scores) {
    spec.router.sigmoid = choice<RouterScores>(*config.router_scores) == RouterScores::kSigmoid;
  }
  override_with(spec.router.normalize, config.router_normalize);
  override_with(spec.router.scale, config.router_scale);
  override_with(spec.router.bias, config.router_bias);
  override_with(spec.router.logit_bias, config.router_logit_bias);
  override_with(spec.router.groups, config.router_groups);
  override_with(spec.router.kept_groups, config.router_kept_groups);
}

void set_mtp(ModelSpec& spec, const ModelConfig& config, int64_t sequence) {
  override_with(spec.mtp_depth, config.mtp_depth);
  override_with(spec.mtp_loss_weight, config.mtp_loss_weight);
  if (config.mtp_loss_weight && spec.mtp_depth == 0) {
    throw_config_error(
        "model.mtp_loss_weight = {}: the model has no multi-token prediction; remove the key, or "
        "set model.mtp_depth",
        *config.mtp_loss_weight);
  }
  if (spec.mtp_depth > 0 && spec.mtp_depth >= sequence) {
    throw_config_error(
        "model.mtp_depth = {}: must be below train.sequence = {}; set at most model.mtp_depth = {}",
        spec.mtp_depth, sequence, sequence - 1);
  }
}

void require_sizes_of_blocks(const ModelSpec& spec) {
  for (const BlockDefinition* const block : all_blocks()) {
    for (const SizeKey& key : block->needed_sizes) {
      if (spec.layers.has(*block)) {
        require_given(key.name, spec.*key.size);
      }
    }
  }
}

void derive_sizes(ModelSpec& spec, int64_t sequence) {
  for (const BlockDefinition* const block : all_blocks()) {
    if (block->derive_sizes != nullptr) {
      block->derive_sizes(spec);
    }
  }
  if (spec.style.positions == PositionKind::kLearned && spec.max_positions == 0) {
    spec.max_positions = sequence;
  }
}

/// Removes the keys of blocks that no layer has, which would be refused.
void forget_other_blocks(ModelConfig& config, const LayerPattern& layers) {
  const ModelSpec spec;
  const auto forget = [](std::string_view, const auto&, auto& key) { key.reset(); };
  if (!layers.has(kSlidingBlock)) {
    config.sliding_window.reset();
    config.rope_local_base_freq.reset();
  }
  if (!layers.has(kMlaBlock)) {
    for_each_latent_key(spec, config, forget);
  }
  if (!layers.has(kMambaBlock)) {
    for_each_mamba_key(spec, config, forget);
  }
  if (!layers.has(kMoeBlock)) {
    config.experts.reset();
    for_each_expert_key(config, [](std::string_view, auto& key) { key.reset(); });
  }
}

/// Only those that differ from the family's, or that no family has.
void set_gemma_keys(ModelConfig& keys, const ModelSpec& model) {
  const ModelFamily& family = find_family(family_name(model.style));
  const auto set = [](auto& key, const auto& value, const auto& usual) {
    if (value != usual) {
      key = value;
    }
  };
  set(keys.norm_offset, model.norm_offset, family.norm_offset);
  set(keys.post_norms, model.post_norms, family.post_norms);
  set(keys.scale_embedding, model.scale_embedding, family.scale_embedding);
  set(keys.query_pre_attn_scalar, model.query_pre_attn_scalar, int64_t{0});
  set(keys.rope_local_base_freq, model.rope_local_base_freq, 0.0);
}

void set_expert_keys(ModelConfig& keys, const ModelSpec& model) {
  keys.experts = model.experts;
  keys.experts_per_token = model.experts_per_token;
  keys.expert_ffn = model.expert_ffn;
  keys.shared_ffn = model.shared_ffn;
  keys.shared_gate = model.shared_gate;
  keys.router_scores = std::string(
      choice_name(model.router.sigmoid ? RouterScores::kSigmoid : RouterScores::kSoftmax));
  keys.router_normalize = model.router.normalize;
  keys.router_scale = model.router.scale;
  keys.router_bias = model.router.bias;
  keys.router_logit_bias = model.router.logit_bias;
  keys.router_groups = model.router.groups;
  keys.router_kept_groups = model.router.kept_groups;
}

}  // namespace

ModelSpec resolve_model(const ModelConfig& config, int64_t sequence, int64_t tokenizer_vocabulary) {
  ModelSpec spec;
  if (!config.preset.empty()) {
    spec = find_preset(config.preset).spec;
  }
  set_family(spec, config);
  set_layers(spec, config);
  require_given("layers", spec.layers.size());
  set_window(spec, config);
  set_experts(spec, config);
  set_latents(spec, config);
  set_states(spec, config);
  override_with(spec.width, config.width);
  override_with(spec.heads, config.heads);
  override_with(spec.kv_heads, config.kv_heads);
  override_with(spec.head_size, config.head_size);
  override_with(spec.ffn, config.ffn);
  override_with(spec.vocabulary, config.vocabulary);
  override_with(spec.max_positions, config.max_positions);
  override_with(spec.tied_embeddings, config.tied_embeddings);
  override_with(spec.qkv_bias, config.qkv_bias);
  override_with(spec.norm_offset, config.norm_offset);
  override_with(spec.post_norms, config.post_norms);
  override_with(spec.scale_embedding, config.scale_embedding);
  override_with(spec.query_pre_attn_scalar, config.query_pre_attn_scalar);
  set_mtp(spec, config, sequence);
  override_with(spec.rope_theta, config.rope_theta);
  set_local_base(spec, config);
  set_rope(spec, config);
  override_with(spec.norm_epsilon, config.norm_epsilon);
  override_with(spec.init_std, config.init_std);
  if (spec.vocabulary == 0) {
    spec.vocabulary = tokenizer_vocabulary;
  }
  require_given("width", spec.width);
  require_sizes_of_blocks(spec);
  require_given("vocabulary", spec.vocabulary);
  derive_sizes(spec, sequence);
  if (spec.vocabulary < tokenizer_vocabulary) {
    throw_config_error(
        "model.vocabulary = {}: the tokenizer has {} ids; set at least {}, or 0 to take the "
        "tokenizer's number",
        spec.vocabulary, tokenizer_vocabulary, tokenizer_vocabulary);
  }
  check_model(spec);
  return spec;
}

ModelSpec with_adapters(ModelSpec model, const LoraConfig& config) {
  if (config.rank == 0) {
    if (config != LoraConfig()) {
      throw_config_error(
          "lora.alpha = {}, lora.dora = {}, lora.targets = [{}], lora.base = {}: there are no "
          "adapters; remove these keys, or set lora.rank",
          config.alpha, config.dora, join(config.targets, ", "), quote(config.base));
    }
    return model;
  }
  model.lora = {.rank = config.rank,
                .alpha = config.alpha,
                .magnitudes = config.dora,
                .targets = config.targets.empty() ? std::vector<std::string>{"*"} : config.targets};
  check_lora(model);
  return model;
}

ModelConfig model_keys(const ModelSpec& model) {
  ModelConfig keys;
  keys.family = std::string(family_name(model.style));
  keys.width = model.width;
  if (model.heads > 0) {
    keys.heads = model.heads;
  }
  keys.kv_heads = model.kv_heads;
  keys.head_size = model.head_size;
  keys.ffn = model.ffn;
  if (model.layers.has(kSlidingBlock)) {
    keys.sliding_window = model.sliding_window;
  }
  if (model.layers.has(kMlaBlock)) {
    for_each_latent_key(
        model, keys,
        [](std::string_view, const int64_t& size, std::optional<int64_t>& key) { key = size; });
  }
  if (model.layers.has(kMambaBlock)) {
    for_each_mamba_key(model, keys,
                       [](std::string_view, const auto& value, auto& key) { key = value; });
  }
  if (model.layers.has(kMoeBlock)) {
    set_expert_keys(keys, model);
  }
  keys.vocabulary = model.vocabulary;
  keys.tied_embeddings = model.tied_embeddings;
  keys.qkv_bias = model.qkv_bias;
  set_gemma_keys(keys, model);
  if (model.mtp_depth > 0) {
    keys.mtp_depth = model.mtp_depth;
    keys.mtp_loss_weight = model.mtp_loss_weight;
  }
  keys.norm_epsilon = model.norm_epsilon;
  keys.init_std = model.init_std;
  if (model.style.positions == PositionKind::kLearned) {
    keys.max_positions = model.max_positions;
  }
  if (model.style.positions == PositionKind::kRope) {
    keys.rope_theta = model.rope_theta;
    if (model.partial_rotary_factor != 1) {
      keys.partial_rotary_factor = model.partial_rotary_factor;
    }
    keys = with_rope_scaling(std::move(keys), model);
  }
  return with_layers(std::move(keys), model.layers);
}

ModelConfig with_layers(ModelConfig config, const LayerPattern& layers) {
  forget_other_blocks(config, layers);
  config.layers = layers.size();
  config.pattern.reset();
  if (layers != LayerPattern(layers.size())) {
    config.pattern = layers.text();
  }
  return config;
}

ModelConfig with_rope_scaling(ModelConfig config, const ModelSpec& model) {
  const RopeScaling& scaling = model.rope_scaling;
  config.rope_type.reset();
  if (scaling.type != RopeType::kDefault) {
    config.rope_type = std::string(rope_type_name(scaling.type));
  }
  for_each_rope_key(scaling, config, [&](std::string_view name, const auto& value, auto& key) {
    key.reset();
    if (has_parameter(scaling, name)) {
      key = value;
    }
  });
  return config;
}

std::vector<std::string> changed_keys_of_preset(const ModelConfig& config) {
  std::vector<std::string> keys;
  if (config.preset.empty()) {
    return keys;
  }
  const ModelSpec spec = find_preset(config.preset).spec;
  const auto compare = [&](const char* key, const auto& given, const auto& preset) {
    if (given && *given != preset) {
      keys.emplace_back(key);
    }
  };
  compare("layers", config.layers, spec.layers.size());
  compare("pattern", config.pattern, spec.layers.text());
  compare("width", config.width, spec.width);
  compare("heads", config.heads, spec.heads);
  compare("kv_heads", config.kv_heads, spec.kv_heads);
  compare("head_size", config.head_size, spec.head_size);
  compare("sliding_window", config.sliding_window, spec.sliding_window);
  for_each_latent_key(spec, config, [&](const char* key, int64_t preset, const auto& given) {
    compare(key, given, preset);
  });
  for_each_mamba_key(spec, config, [&](const char* key, const auto& preset, const auto& given) {
    compare(key, given, preset);
  });
  compare("ffn", config.ffn, spec.ffn);
  compare("experts", config.experts, spec.experts);
  compare("experts_per_token", config.experts_per_token, spec.experts_per_token);
  compare("expert_ffn", config.expert_ffn, spec.expert_ffn);
  compare("shared_ffn", config.shared_ffn, spec.shared_ffn);
  compare("shared_gate", config.shared_gate, spec.shared_gate);
  compare("router_logit_bias", config.router_logit_bias, spec.router.logit_bias);
  compare("vocabulary", config.vocabulary, spec.vocabulary);
  compare("tied_embeddings", config.tied_embeddings, spec.tied_embeddings);
  compare("qkv_bias", config.qkv_bias, spec.qkv_bias);
  compare("mtp_depth", config.mtp_depth, spec.mtp_depth);
  return keys;
}

}  // namespace braid
