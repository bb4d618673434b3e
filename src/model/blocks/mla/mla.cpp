#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.h"
#include "model/block_builder.h"
#include "model/blocks/attention/heads.h"
#include "model/blocks/registry.h"
#include "ops/cached_attention.h"
#include "ops/columns.h"
#include "ops/context_attention.h"
#include "ops/linear.h"
#include "ops/mla_qkv.h"
#include "ops/norm.h"

namespace braid {
namespace {

constexpr std::array kNeededSizes = {SizeKey{"heads", &ModelSpec::heads},
                                     SizeKey{"kv_lora_rank", &ModelSpec::kv_lora_rank},
                                     SizeKey{"qk_nope_head_dim", &ModelSpec::qk_nope_head_dim},
                                     SizeKey{"qk_rope_head_dim", &ModelSpec::qk_rope_head_dim},
                                     SizeKey{"v_head_dim", &ModelSpec::v_head_dim}};

/// Elements of a query or key head.
int64_t score_size(const ModelSpec& spec) {
  return spec.qk_nope_head_dim + spec.qk_rope_head_dim;
}

/// What scores of attention are multiplied by.
double score_scale(const ModelSpec& spec) {
  return rope_score_scale(spec.rope_scaling) / std::sqrt(static_cast<double>(score_size(spec)));
}

/// Attention has heads of one size: the smaller part of them ends in zeros.
int64_t padded_size(const ModelSpec& spec) {
  return std::max(score_size(spec), spec.v_head_dim);
}

void check_style(const ModelSpec& spec) {
  const ModelStyle& style = spec.style;
  if (style.norm != NormKind::kRmsNorm || style.positions != PositionKind::kRope ||
      style.head_norm != HeadNorm::kNone || style.linear_biases) {
    throw_config_error(
        "model.family: latent attention has the norms and positions of a llama; set model.family = "
        "\"llama\", or use no \"mla\" in model.pattern");
  }
  if (spec.qkv_bias) {
    throw_config_error(
        "model.qkv_bias = true: latent attention has no biases; set model.qkv_bias = false, or use "
        "no \"mla\" in model.pattern");
  }
}

/// Sizes of plain attention say nothing about a model without it.
void refuse_plain_sizes(const ModelSpec& spec) {
  const auto refuse = [&](std::string_view key, int64_t value) {
    if (value != 0 && !has_heads(spec.layers)) {
      throw_config_error(
          "model.{} = {}: no layer of model.pattern has \"attention\"; remove the key", key, value);
    }
  };
  refuse("kv_heads", spec.kv_heads);
  refuse("head_size", spec.head_size);
}

void check_sizes(const ModelSpec& spec) {
  for (const SizeKey& key : kNeededSizes) {
    require_positive_size(key.name, spec.*key.size);
  }
  if (spec.q_lora_rank < 0) {
    throw_config_error("model.q_lora_rank = {}: must be at least 0", spec.q_lora_rank);
  }
  if (spec.qk_rope_head_dim % 2 != 0) {
    throw_config_error(
        "model.qk_rope_head_dim = {}: must be even, because rotary positions rotate pairs; set "
        "model.qk_rope_head_dim = {}",
        spec.qk_rope_head_dim, spec.qk_rope_head_dim + 1);
  }
  check_style(spec);
  refuse_plain_sizes(spec);
}

std::optional<std::string> tensor_fault(const ModelSpec& spec, int64_t ranks) {
  return spec.heads % ranks == 0
             ? std::nullopt
             : std::optional(fmt::format("must divide model.heads = {}", spec.heads));
}

int64_t heads_of_rank(const ModelSpec& spec, const TensorShard& tensor) {
  return spec.heads / tensor.size;
}

void check_context(const ModelSpec& spec, const TensorShard& tensor, const ContextShard& context,
                   const ContextLimits& limits) {
  const int64_t heads = heads_of_rank(spec, tensor);
  check_exchanged_heads({.heads = heads, .kv_heads = heads}, context, limits.nearest_inner);
}

void add_parameters(ParameterList& list, const ModelSpec& spec) {
  const int64_t query_rows = spec.heads * score_size(spec);
  if (spec.q_lora_rank > 0) {
    list.linear("mla.q_a",
                {.out = spec.q_lora_rank, .in = spec.width, .split = TensorSplit::kNorm});
    list.latent_norm("mla.q_norm", spec.q_lora_rank);
    list.linear("mla.q_b", {.out = query_rows, .in = spec.q_lora_rank});
  } else {
    list.linear("mla.q", {.out = query_rows, .in = spec.width});
  }
  list.linear("mla.kv_a", {.out = spec.kv_lora_rank + spec.qk_rope_head_dim,
                           .in = spec.width,
                           .split = TensorSplit::kNorm});
  list.latent_norm("mla.kv_norm", spec.kv_lora_rank);
  list.linear("mla.kv_b", {.out = spec.heads * (spec.qk_nope_head_dim + spec.v_head_dim),
                           .in = spec.kv_lora_rank});
  list.linear("mla.proj", {.out = spec.width,
                           .in = spec.heads * spec.v_head_dim,
                           .split = TensorSplit::kColumns,
                           .std_scale = list.residual_scale()});
}

/// The product with a matrix that all ranks hold, for the rows that this rank has.
ValueId whole_linear(BlockBuilder& builder, ValueId x, std::string_view site) {
  return linear(builder.graph(),
                {.x = x,
                 .weight = builder.scoped_param(fmt::format("{}.weight", site)),
                 .bias = std::nullopt},
                site);
}

ValueId latent_norm(BlockBuilder& builder, ValueId x, std::string_view site) {
  return rmsnorm(builder.graph(), x, builder.scoped_param(fmt::format("{}.weight", site)),
                 builder.spec().norm_epsilon, site, builder.norm_offset());
}

ValueId queries(BlockBuilder& builder, ValueId x) {
  if (builder.spec().q_lora_rank == 0) {
    return builder.column_linear(x, "mla.q");
  }
  const ValueId latent = latent_norm(builder, whole_linear(builder, x, "mla.q_a"), "mla.q_norm");
  return builder.column_linear(latent, "mla.q_b");
}

MlaOperands parts_of(BlockBuilder& builder, ValueId x) {
  const ModelSpec& spec = builder.spec();
  const int64_t rank = spec.kv_lora_rank;
  const int64_t rotated = spec.qk_rope_head_dim;
  const ValueId both = whole_linear(builder, x, "mla.kv_a");
  const auto columns = [&](int64_t begin, int64_t size, std::string_view site) {
    return take_columns(builder.graph(), both,
                        {.width = rank + rotated, .begin = begin, .size = size}, site);
  };
  const ValueId latent = latent_norm(builder, columns(0, rank, "mla.kv_latent"), "mla.kv_norm");
  return {.q = queries(builder, x),
          .kv = builder.column_linear(latent, "mla.kv_b"),
          .k_rope = builder.to_all(columns(rank, rotated, "mla.k_rope"), "mla.k_rope"),
          .starts = builder.document_starts()};
}

ValueId packed_heads(BlockBuilder& builder, ValueId x) {
  const ModelSpec& spec = builder.spec();
  return mla_qkv(builder.graph(), parts_of(builder, x),
                 {.heads = heads_of_rank(spec, builder.tensor()),
                  .plain = spec.qk_nope_head_dim,
                  .rotated = spec.qk_rope_head_dim,
                  .value = spec.v_head_dim,
                  .head_size = padded_size(spec),
                  .sequence = builder.positioned_rows(),
                  .theta = spec.rope_theta,
                  .positions = builder.positions(),
                  .scaling = builder.rope_scaling()},
                 "mla.qkv");
}

/// A cache holds the keys and values of all heads, not the latent that they are made of.
ValueId mixed_heads(BlockBuilder& builder, ValueId qkv) {
  const ModelSpec& spec = builder.spec();
  const ContextShard& context = builder.context();
  const int64_t heads = heads_of_rank(spec, builder.tensor());
  const int64_t head_size = padded_size(spec);
  if (const auto cache = builder.cache()) {
    return cached_attention(
        builder.graph(), qkv, *cache,
        {.heads = heads, .kv_heads = heads, .head_size = head_size, .scale = score_scale(spec)},
        "mla.core");
  }
  return context_attention(builder.graph(), qkv,
                           {.core = {.heads = heads,
                                     .kv_heads = heads,
                                     .head_size = head_size,
                                     .sequence = builder.local_sequence(),
                                     .scale = score_scale(spec),
                                     .documents = builder.documents(),
                                     .padding = {.value_size = spec.v_head_dim}},
                            .inner = context.inner,
                            .inner_runs = context.runs(builder.sequence()),
                            .outer = context.outer(),
                            .outer_index = context.outer_index(),
                            .method = context.method,
                            .starts = builder.attention_starts()},
                           "mla.core");
}

ValueId forward(BlockBuilder& builder, ValueId x) {
  const ModelSpec& spec = builder.spec();
  const int64_t heads = heads_of_rank(spec, builder.tensor());
  const ValueId mixed = mixed_heads(builder, packed_heads(builder, x));
  const ValueId values =
      take_columns(builder.graph(), mixed,
                   {.runs = heads, .width = padded_size(spec), .begin = 0, .size = spec.v_head_dim},
                   "mla.values");
  return builder.row_linear(values, "mla.proj");
}

/// As for attention: half of the sequence on average, and five products in the backward. Zeros that
/// pad heads are kept, but count as no work.
BlockCost cost(const ModelSpec& spec, int64_t sequence) {
  constexpr double kBackward = 2.5;
  const auto width = static_cast<double>(spec.width);
  const auto heads = static_cast<double>(spec.heads);
  const auto scores = static_cast<double>(score_size(spec));
  const auto values = static_cast<double>(spec.v_head_dim);
  const auto kv_rows = heads * static_cast<double>(spec.qk_nope_head_dim + spec.v_head_dim);
  const auto q_rank = static_cast<double>(spec.q_lora_rank);
  const auto kv_rank = static_cast<double>(spec.kv_lora_rank);
  const auto kv_a_rows = static_cast<double>(spec.kv_lora_rank + spec.qk_rope_head_dim);
  const double q_weights =
      spec.q_lora_rank > 0 ? q_rank * (width + heads * scores) : width * heads * scores;
  const auto packed = 3 * heads * static_cast<double>(padded_size(spec));
  const double mixing = heads * (scores + values) / 2 * static_cast<double>(sequence);
  return {.weights = q_weights + width * kv_a_rows + kv_rank * kv_rows + heads * values * width,
          .mixing = mixing,
          .mixing_backward = kBackward * mixing,
          .kept_elems =
              2 * width + 2 * q_rank + kv_a_rows + kv_rank + packed + packed / 3 + heads * values,
          .widest = std::max(width, packed)};
}

/// Norms of latents have an epsilon of their own in these files.
void check_epsilon(const ModelSpec& spec) {
  constexpr double kLatentEpsilon = 1e-6;
  if (spec.norm_epsilon != kLatentEpsilon) {
    throw_config_error(
        "model.norm_epsilon = {}: norms of latents have {} in DeepSeek's files, and braid has one "
        "value for all norms; set model.norm_epsilon = {}",
        spec.norm_epsilon, kLatentEpsilon, kLatentEpsilon);
  }
}

void add_hf_tensors(HfTensorList& list, const ModelSpec& spec, HfNaming naming) {
  if (naming != HfNaming::kDeepseek) {
    throw_config_error("model.pattern: such files have no block \"mla\"");
  }
  check_epsilon(spec);
  const int64_t query_rows = spec.heads * score_size(spec);
  list.add_norm("input_layernorm", spec, "mla_norm");
  if (spec.q_lora_rank > 0) {
    list.add("self_attn.q_a_proj.weight", {spec.q_lora_rank, spec.width}, "mla.q_a.weight");
    list.add("self_attn.q_a_layernorm.weight", {spec.q_lora_rank}, "mla.q_norm.weight");
    list.add("self_attn.q_b_proj.weight", {query_rows, spec.q_lora_rank}, "mla.q_b.weight");
  } else {
    list.add("self_attn.q_proj.weight", {query_rows, spec.width}, "mla.q.weight");
  }
  list.add("self_attn.kv_a_proj_with_mqa.weight",
           {spec.kv_lora_rank + spec.qk_rope_head_dim, spec.width}, "mla.kv_a.weight");
  list.add("self_attn.kv_a_layernorm.weight", {spec.kv_lora_rank}, "mla.kv_norm.weight");
  list.add("self_attn.kv_b_proj.weight",
           {spec.heads * (spec.qk_nope_head_dim + spec.v_head_dim), spec.kv_lora_rank},
           "mla.kv_b.weight");
  list.add("self_attn.o_proj.weight", {spec.width, spec.heads * spec.v_head_dim},
           "mla.proj.weight");
}

}  // namespace

/// Multi-head latent attention: keys and values of all heads are made of one small latent per
/// token, queries of another or of the token itself, and one rotated part of keys serves all heads.
/// Each head is on one tensor rank. Matrices that make latents, and their norms, are whole on each
/// rank, which applies them to the rows that it has. Source: DeepSeek-AI, DeepSeek-V2, 2024,
/// section 2.1.
extern const BlockDefinition kMlaBlock{.name = "mla",
                                       .role = BlockRole::kMixer,
                                       .multiplies_own_rows = true,
                                       .needed_sizes = kNeededSizes,
                                       .check_sizes = check_sizes,
                                       .tensor_fault = tensor_fault,
                                       .exchanged_heads = heads_of_rank,
                                       .check_context = check_context,
                                       .add_parameters = add_parameters,
                                       .forward = forward,
                                       .cost = cost,
                                       .add_hf_tensors = add_hf_tensors};

}  // namespace braid
