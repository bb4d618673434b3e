#include "model/model_spec.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/text.h"
#include "model/blocks/registry.h"
#include "model/families.h"
#include "model/mtp.h"
#include "model/parameters.h"

namespace braid {

namespace {

void check_factors(std::string_view key, const std::string& list, int64_t pairs) {
  const int64_t found = std::ssize(rope_factors(list));
  if (found != pairs) {
    throw_config_error(
        "model.rope_{} = {}: must list {} positive numbers, one for each rotated pair", key,
        quote(list, 80), pairs);
  }
}

void check_longrope(const ModelSpec& spec) {
  const bool has_latents = spec.layers.has(kMlaBlock);
  const int64_t rotated = has_latents ? spec.qk_rope_head_dim : spec.rotated_size();
  check_factors("short_factor", spec.rope_scaling.short_factor, rotated / 2);
  if (!spec.rope_scaling.long_factor.empty()) {
    check_factors("long_factor", spec.rope_scaling.long_factor, rotated / 2);
  }
}

void check_norms(const ModelSpec& spec) {
  if (spec.norm_offset != 0 && spec.norm_offset != 1) {
    throw_config_error("model.norm_offset = {}: must be 0 or 1", spec.norm_offset);
  }
  if (spec.style.norm == NormKind::kLayerNorm && (spec.norm_offset != 0 || spec.post_norms)) {
    throw_config_error("model.{}: a {} model has LayerNorms, not RMSNorms; remove the key",
                       spec.post_norms ? "post_norms = true" : "norm_offset = 1",
                       family_name(spec.style));
  }
}

void check_local_base(const ModelSpec& spec) {
  if (spec.rope_local_base_freq == 0) {
    return;
  }
  if (spec.style.positions != PositionKind::kRope) {
    throw_config_error(
        "model.rope_local_base_freq = {}: a {} model has no rotary positions; remove the key",
        spec.rope_local_base_freq, family_name(spec.style));
  }
  if (!spec.layers.has(kSlidingBlock)) {
    throw_config_error(
        "model.rope_local_base_freq = {}: no layer of model.pattern has \"sliding\"; remove the "
        "key, or write \"sliding+mlp\" for layers with windows",
        spec.rope_local_base_freq);
  }
}

void check_rope(const ModelSpec& spec) {
  check_local_base(spec);
  const bool has_heads = spec.layers.has(kAttentionBlock) || spec.layers.has(kSlidingBlock);
  if (spec.partial_rotary_factor != 1 &&
      (spec.style.positions != PositionKind::kRope || !has_heads)) {
    throw_config_error(
        "model.partial_rotary_factor = {}: the model has no attention that rotates heads; "
        "remove the key",
        spec.partial_rotary_factor);
  }
  const RopeScaling& scaling = spec.rope_scaling;
  if (scaling.type == RopeType::kDefault) {
    return;
  }
  const std::string_view type = rope_type_name(scaling.type);
  if (spec.style.positions != PositionKind::kRope) {
    throw_config_error(
        "model.rope_type = \"{}\": a {} model has no rotary positions; remove the key", type,
        family_name(spec.style));
  }
  if (scaling.type == RopeType::kYarn && spec.rope_theta <= 1) {
    throw_config_error("model.rope_theta = {}: must be above 1 with model.rope_type = \"{}\"",
                       spec.rope_theta, type);
  }
  if (const std::optional<RopeFault> fault = rope_fault(scaling)) {
    throw_config_error("model.rope_{} = {}: {}", fault->parameter, fault->value, fault->limit);
  }
  if (scaling.type == RopeType::kLongrope) {
    check_longrope(spec);
  }
}

template <class Counts>
int64_t count_parameters(const ModelSpec& spec, const Counts& counts) {
  int64_t total = 0;
  for (const Parameter& parameter : model_parameters(spec)) {
    if (counts(parameter)) {
      const bool padded = parameter.vocabulary_rows;
      total += padded ? spec.vocabulary * parameter.shape[1] : parameter.shape.num_elems();
    }
  }
  return total;
}

}  // namespace

double ModelSpec::attention_scale() const {
  const int64_t scalar = query_pre_attn_scalar > 0 ? query_pre_attn_scalar : head_size;
  return 1.0 / std::sqrt(static_cast<double>(scalar));
}

void check_model(const ModelSpec& spec) {
  require_positive_size("layers", spec.layers.size());
  require_positive_size("width", spec.width);
  for (const BlockDefinition* const block : all_blocks()) {
    if (spec.layers.has(*block)) {
      block->check_sizes(spec);
    }
  }
  require_positive_size("vocabulary", spec.vocabulary);
  if (spec.style.positions == PositionKind::kLearned) {
    require_positive_size("max_positions", spec.max_positions);
  }
  check_norms(spec);
  check_rope(spec);
  check_mtp(spec);
  check_lora(spec);
}

int64_t num_parameters(const ModelSpec& spec) {
  return count_parameters(spec, [](const Parameter&) { return true; });
}

int64_t num_trained_parameters(const ModelSpec& spec) {
  return count_parameters(spec, [](const Parameter& parameter) { return !parameter.frozen; });
}

int64_t num_idle_parameters(const ModelSpec& spec) {
  const auto has_experts = [](const LayerSpec& layer) { return layer.feed_forward == &kMoeBlock; };
  const bool in_mtp = spec.mtp_depth > 0 && has_experts(mtp_layer(spec));
  const auto layers =
      std::ranges::count_if(spec.layers, has_experts) + (in_mtp ? spec.mtp_depth : 0);
  const int64_t matrices = spec.style.is_gated() ? 3 : 2;
  return layers * (spec.experts - spec.experts_per_token) * matrices * spec.width * spec.expert_ffn;
}

int64_t num_matrix_parameters(const ModelSpec& spec) {
  return static_cast<int64_t>(model_cost(spec, 0).weights + mtp_cost(spec, 0).weights) +
         spec.width * spec.vocabulary;
}

double train_flops_per_token(const ModelSpec& spec, int64_t sequence) {
  const auto matrices = static_cast<double>(num_matrix_parameters(spec));
  const double mixing = model_cost(spec, sequence).mixing + mtp_cost(spec, sequence).mixing;
  return spec.lora.is_on()
             ? 4.0 * matrices + 6.0 * (static_cast<double>(num_trained_parameters(spec)) + mixing)
             : 6.0 * (matrices + mixing);
}

namespace {

/// ", 64 experts of 1024, 8 per token"; empty if there are none.
std::string describe_experts(const ModelSpec& spec) {
  if (!spec.layers.has(kMoeBlock)) {
    return "";
  }
  const std::string shared =
      spec.shared_ffn > 0 ? fmt::format(" and {} of {} for all",
                                        spec.shared_gate ? "a gated one" : "one", spec.shared_ffn)
                          : "";
  return fmt::format(", {} experts of {}, {} per token{}", spec.experts, spec.expert_ffn,
                     spec.experts_per_token, shared);
}

/// " in windows of 4096"; empty without them.
std::string describe_window(const ModelSpec& spec) {
  return spec.layers.has(kSlidingBlock) ? fmt::format(" in windows of {}", spec.sliding_window)
                                        : "";
}

/// ", 32 heads (8 kv) of 128"; with latents ", 16 heads of 128+64, values 128, latents of 512";
/// empty without attention.
std::string describe_heads(const ModelSpec& spec) {
  if (spec.heads == 0) {
    return "";
  }
  if (!spec.layers.has(kMlaBlock)) {
    return fmt::format(", {} heads ({} kv) of {}{}", spec.heads, spec.kv_heads, spec.head_size,
                       describe_window(spec));
  }
  const std::string queries =
      spec.q_lora_rank > 0 ? fmt::format(" and queries of {}", spec.q_lora_rank) : "";
  return fmt::format(", {} heads of {}+{}, values {}, latents of {}{}", spec.heads,
                     spec.qk_nope_head_dim, spec.qk_rope_head_dim, spec.v_head_dim,
                     spec.kv_lora_rank, queries);
}

/// ", states of 24 heads of 64 x 128 in 1 group"; empty without layers with "mamba".
std::string describe_states(const ModelSpec& spec) {
  if (!spec.layers.has(kMambaBlock)) {
    return "";
  }
  return fmt::format(", states of {} heads of {} x {} in {} group{}", spec.mamba_num_heads,
                     spec.mamba_head_dim, spec.ssm_state_size, spec.mamba_n_groups,
                     spec.mamba_n_groups == 1 ? "" : "s");
}

/// " and 1 of multi-token prediction"; empty without it.
std::string describe_mtp(const ModelSpec& spec) {
  return spec.mtp_depth > 0 ? fmt::format(" and {} of multi-token prediction", spec.mtp_depth) : "";
}

/// "6919.16 M parameters", and for experts how many of them work on a token.
std::string describe_parameters(const ModelSpec& spec) {
  const double all = static_cast<double>(num_parameters(spec)) * 1e-6;
  if (spec.lora.is_on()) {
    return fmt::format("{:.2f} M parameters, {:.2f} M of them in adapters of rank {}", all,
                       static_cast<double>(num_trained_parameters(spec)) * 1e-6, spec.lora.rank);
  }
  if (!spec.layers.has(kMoeBlock)) {
    return fmt::format("{:.2f} M parameters", all);
  }
  const double idle = static_cast<double>(num_idle_parameters(spec)) * 1e-6;
  return fmt::format("{:.2f} M parameters, {:.2f} M per token", all, all - idle);
}

}  // namespace

std::string describe_model(const ModelSpec& spec) {
  const bool is_usual = spec.layers == LayerPattern(spec.layers.size());
  const bool has_ffn =
      spec.layers.has(kMlpBlock) || !(spec.layers.has(kMoeBlock) || spec.layers.has(kMambaBlock));
  return fmt::format(
      "{}: {} layers{}{}, width {}{}{}{}{}, vocabulary {}{}, {}", family_name(spec.style),
      spec.layers.size(), is_usual ? "" : fmt::format(" ({})", spec.layers.text()),
      describe_mtp(spec), spec.width, describe_heads(spec), describe_states(spec),
      has_ffn ? fmt::format(", ffn {}", spec.ffn) : "", describe_experts(spec), spec.vocabulary,
      spec.tied_embeddings ? " (tied)" : "", describe_parameters(spec));
}

}  // namespace braid
