#include <algorithm>
#include <array>
#include <numeric>

#include "base/errors.h"
#include "model/block_builder.h"
#include "model/blocks/attention/heads.h"
#include "model/blocks/registry.h"
#include "ops/attention_window.h"
#include "ops/cached_attention.h"
#include "ops/context_attention.h"
#include "ops/head_norm.h"
#include "ops/rope.h"

namespace braid {
namespace {

constexpr std::array kNeededSizes = {SizeKey{"heads", &ModelSpec::heads}};
constexpr std::array kNeededSizesOfWindows = {
    SizeKey{"heads", &ModelSpec::heads}, SizeKey{"sliding_window", &ModelSpec::sliding_window}};

void derive_sizes(ModelSpec& spec) {
  if (spec.heads == 0 || (spec.layers.has(kMlaBlock) && !has_heads(spec.layers))) {
    return;
  }
  if (spec.kv_heads == 0) {
    spec.kv_heads = spec.heads;
  }
  if (spec.head_size == 0) {
    if (spec.width % spec.heads != 0) {
      throw_config_error(
          "model.heads = {}: must divide model.width = {} unless model.head_size is given",
          spec.heads, spec.width);
    }
    spec.head_size = spec.width / spec.heads;
  }
}

void check_rotated_part(const ModelSpec& spec) {
  const int64_t rotated = spec.rotated_size();
  if (rotated >= 2 && rotated % 2 == 0 && rotated <= spec.head_size) {
    return;
  }
  const int64_t nearest =
      std::min(std::max<int64_t>((rotated + 1) / 2 * 2, 2), spec.head_size / 2 * 2);
  throw_config_error(
      "model.partial_rotary_factor = {}: rotates {} of model.head_size = {} elements, which must "
      "be pairs; set model.partial_rotary_factor = {}",
      spec.partial_rotary_factor, rotated, spec.head_size,
      static_cast<double>(nearest) / static_cast<double>(spec.head_size));
}

void check_sizes(const ModelSpec& spec) {
  require_positive_size("heads", spec.heads);
  require_positive_size("kv_heads", spec.kv_heads);
  require_positive_size("head_size", spec.head_size);
  if (spec.heads % spec.kv_heads != 0) {
    throw_config_error("model.kv_heads = {}: must divide model.heads = {}; set model.kv_heads = {}",
                       spec.kv_heads, spec.heads, std::gcd(spec.heads, spec.kv_heads));
  }
  if (spec.style.positions == PositionKind::kRope && spec.partial_rotary_factor != 1) {
    return check_rotated_part(spec);
  }
  if (spec.style.positions == PositionKind::kRope && spec.head_size % 2 != 0) {
    throw_config_error(
        "model.head_size = {}: must be even for rotary embeddings; set model.head_size = {}",
        spec.head_size, spec.head_size + 1);
  }
}

void check_sizes_of_windows(const ModelSpec& spec) {
  check_sizes(spec);
  require_positive_size("sliding_window", spec.sliding_window);
}

std::optional<std::string> tensor_fault(const ModelSpec& spec, int64_t ranks) {
  if (spec.style.head_norm == HeadNorm::kRow && ranks > 1) {
    return "must be 1, because a norm takes all heads of a token together";
  }
  if (spec.heads % ranks != 0) {
    return fmt::format("must divide model.heads = {}", spec.heads);
  }
  if (spec.kv_heads % ranks != 0 && ranks % spec.kv_heads != 0) {
    return fmt::format("must divide model.kv_heads = {} or be a multiple of it", spec.kv_heads);
  }
  return std::nullopt;
}

int64_t local_exchanged_heads(const ModelSpec& spec, const TensorShard& tensor) {
  const LocalHeads local = local_heads(spec, tensor);
  return std::gcd(local.heads, local.kv_heads);
}

void check_context(const ModelSpec& spec, const TensorShard& tensor, const ContextShard& context,
                   const ContextLimits& limits) {
  check_exchanged_heads(local_heads(spec, tensor), context, limits.nearest_inner);
}

void add_parameters(ParameterList& list, const ModelSpec& spec) {
  const int64_t head_size = spec.head_size;
  list.linear(
      "attention.qkv",
      {.out = qkv_width(spec),
       .in = spec.width,
       .bias = spec.qkv_bias,
       .split = TensorSplit::kHeads,
       .heads = {{spec.heads, head_size}, {spec.kv_heads, head_size}, {spec.kv_heads, head_size}},
       .matrices = {"q", "k", "v"}});
  if (spec.style.head_norm != HeadNorm::kNone) {
    const bool whole = spec.style.head_norm == HeadNorm::kRow;
    list.head_norm("attention.query_norm", whole ? spec.heads * head_size : head_size);
    list.head_norm("attention.key_norm", whole ? spec.kv_heads * head_size : head_size);
  }
  list.linear("attention.proj", {.out = spec.width,
                                 .in = spec.heads * head_size,
                                 .bias = spec.style.linear_biases,
                                 .split = TensorSplit::kColumns,
                                 .std_scale = list.residual_scale(),
                                 .matrices = {"proj"}});
}

ValueId normalised_heads(BlockBuilder& builder, ValueId qkv, const LocalHeads& local) {
  const ModelSpec& spec = builder.spec();
  return head_norm(builder.graph(),
                   {.qkv = qkv,
                    .query_weight = builder.scoped_param("attention.query_norm.weight"),
                    .key_weight = builder.scoped_param("attention.key_norm.weight")},
                   {.heads = local.heads,
                    .kv_heads = local.kv_heads,
                    .head_size = spec.head_size,
                    .whole = spec.style.head_norm == HeadNorm::kRow,
                    .epsilon = spec.norm_epsilon,
                    .offset = builder.norm_offset()},
                   "attention.head_norm");
}

/// Of the op: 0 is that of the head size.
double score_scale(const ModelSpec& spec) {
  return spec.query_pre_attn_scalar > 0 ? spec.attention_scale() : 0.0;
}

/// Nothing where whole heads are rotated.
RotatedElements rotated_part(const ModelSpec& spec) {
  return spec.rotated_size() == spec.head_size ? RotatedElements{}
                                               : RotatedElements{spec.rotated_size()};
}

/// What layers with and without windows differ in.
struct AttentionKind {
  AttentionWindow window = {};
  double theta = 0;
  RopeScaling scaling = {};
};

/// A window that hides nothing is none, so that it changes no bits.
ValueId attend(BlockBuilder& builder, ValueId x, const AttentionKind& kind) {
  const ModelSpec& spec = builder.spec();
  const LocalHeads local = local_heads(spec, builder.tensor());
  const ContextShard& context = builder.context();
  const int64_t keys = local.heads * spec.head_size;
  const int64_t values = keys + local.kv_heads * spec.head_size;
  ValueId qkv = builder.column_linear(x, "attention.qkv",
                                      {{"q"}, {"k", {.begin = keys}}, {"v", {.begin = values}}});
  if (spec.style.head_norm != HeadNorm::kNone) {
    qkv = normalised_heads(builder, qkv, local);
  }
  if (spec.style.positions == PositionKind::kRope) {
    qkv = rope(builder.graph(), qkv,
               {.heads = local.heads,
                .kv_heads = local.kv_heads,
                .head_size = spec.head_size,
                .sequence = builder.positioned_rows(),
                .theta = kind.theta,
                .positions = builder.positions(),
                .scaling = kind.scaling,
                .part = rotated_part(spec)},
               "attention.rope", builder.document_starts());
  }
  const auto cache = builder.cache();
  AttentionWindow window = kind.window;
  if (!window.hides(cache ? cache->capacity : builder.sequence())) {
    window = {};
  }
  if (cache) {
    const ValueId mixed = cached_attention(builder.graph(), qkv, *cache,
                                           {.heads = local.heads,
                                            .kv_heads = local.kv_heads,
                                            .head_size = spec.head_size,
                                            .scale = score_scale(spec),
                                            .window = window},
                                           "attention.core");
    return builder.row_linear(mixed, "attention.proj", {{"proj"}});
  }
  const ValueId mixed = context_attention(builder.graph(), qkv,
                                          {.core = {.heads = local.heads,
                                                    .kv_heads = local.kv_heads,
                                                    .head_size = spec.head_size,
                                                    .sequence = builder.local_sequence(),
                                                    .scale = score_scale(spec),
                                                    .documents = builder.documents(),
                                                    .window = window},
                                           .inner = context.inner,
                                           .inner_runs = context.runs(builder.sequence()),
                                           .outer = context.outer(),
                                           .outer_index = context.outer_index(),
                                           .method = context.method,
                                           .starts = builder.attention_starts()},
                                          "attention.core");
  return builder.row_linear(mixed, "attention.proj", {{"proj"}});
}

ValueId forward(BlockBuilder& builder, ValueId x) {
  return attend(builder, x,
                {.theta = builder.spec().rope_theta, .scaling = builder.rope_scaling()});
}

ValueId forward_in_windows(BlockBuilder& builder, ValueId x) {
  const ModelSpec& spec = builder.spec();
  const AttentionWindow window{.window = spec.sliding_window};
  return spec.rope_local_base_freq > 0
             ? attend(builder, x, {.window = window, .theta = spec.rope_local_base_freq})
             : attend(
                   builder, x,
                   {.window = window, .theta = spec.rope_theta, .scaling = builder.rope_scaling()});
}

/// A token attends to `keys` tokens on average, in two products; five in the backward.
BlockCost cost_of_keys(const ModelSpec& spec, double keys) {
  constexpr double kBackward = 2.5;
  const auto width = static_cast<double>(spec.width);
  const auto qkv = static_cast<double>(qkv_width(spec));
  const auto heads = static_cast<double>(spec.heads * spec.head_size);
  const double mixing = 2 * heads * keys;
  return {.weights = width * (qkv + heads),
          .mixing = mixing,
          .mixing_backward = kBackward * mixing,
          .kept_elems = (spec.post_norms ? 3 : 2) * width + qkv + heads,
          .widest = std::max(width, qkv)};
}

/// Causal attention: half of the sequence.
BlockCost cost(const ModelSpec& spec, int64_t sequence) {
  return cost_of_keys(spec, 0.5 * static_cast<double>(sequence));
}

/// A window less the half of it that the first queries of a sequence lack.
BlockCost cost_in_windows(const ModelSpec& spec, int64_t sequence) {
  const auto window = static_cast<double>(std::min(spec.sliding_window, sequence));
  return window == 0
             ? cost(spec, sequence)
             : cost_of_keys(spec, window - 0.5 * window * window / static_cast<double>(sequence));
}

/// Names of the block, of the norm in front of it, and of the one behind it if there is one.
struct BlockNames {
  std::string_view norm;
  std::string_view block;
  std::string_view post_norm = {};
};

/// Llama files hold query, key and value as one tensor each.
void add_llama_tensors(HfTensorList& list, const ModelSpec& spec, const BlockNames& names) {
  const int64_t query_rows = spec.heads * spec.head_size;
  const int64_t kv_rows = spec.kv_heads * spec.head_size;
  struct Projection {
    std::string_view name;
    int64_t first_row;
    int64_t rows;
  };
  list.add_norm(names.norm, spec, "attention_norm");
  if (!names.post_norm.empty()) {
    list.add_norm(names.post_norm, spec, "attention_post_norm");
  }
  for (const auto& [name, first_row, rows] :
       {Projection{"q_proj", 0, query_rows}, Projection{"k_proj", query_rows, kv_rows},
        Projection{"v_proj", query_rows + kv_rows, kv_rows}}) {
    list.add(fmt::format("{}.{}.weight", names.block, name), {rows, spec.width},
             "attention.qkv.weight", first_row);
    if (spec.qkv_bias) {
      list.add(fmt::format("{}.{}.bias", names.block, name), {rows}, "attention.qkv.bias",
               first_row);
    }
  }
  if (spec.style.head_norm != HeadNorm::kNone) {
    const bool whole = spec.style.head_norm == HeadNorm::kRow;
    list.add(fmt::format("{}.q_norm.weight", names.block), {whole ? query_rows : spec.head_size},
             "attention.query_norm.weight");
    list.add(fmt::format("{}.k_norm.weight", names.block), {whole ? kv_rows : spec.head_size},
             "attention.key_norm.weight");
  }
  list.add(fmt::format("{}.o_proj.weight", names.block), {spec.width, query_rows},
           "attention.proj.weight");
}

void add_phi3_tensors(HfTensorList& list, const ModelSpec& spec) {
  if (spec.qkv_bias) {
    throw_config_error("model.qkv_bias = true: a Phi3ForCausalLM has no biases");
  }
  const int64_t query_rows = spec.heads * spec.head_size;
  list.add_norm("input_layernorm", spec, "attention_norm");
  list.add("self_attn.qkv_proj.weight",
           {query_rows + 2 * spec.kv_heads * spec.head_size, spec.width}, "attention.qkv.weight");
  list.add("self_attn.o_proj.weight", {spec.width, query_rows}, "attention.proj.weight");
}

void check_gpt2(const ModelSpec& spec) {
  if (spec.kv_heads != spec.heads) {
    throw_config_error("model.kv_heads = {}: a GPT2LMHeadModel has as many as model.heads = {}",
                       spec.kv_heads, spec.heads);
  }
  if (spec.heads * spec.head_size != spec.width) {
    throw_config_error(
        "model.head_size = {}: a GPT2LMHeadModel has model.width / model.heads = {} / {}",
        spec.head_size, spec.width, spec.heads);
  }
  if (!spec.qkv_bias) {
    throw_config_error("model.qkv_bias = false: a GPT2LMHeadModel has these biases");
  }
}

void add_hf_tensors(HfTensorList& list, const ModelSpec& spec, HfNaming naming) {
  switch (naming) {
    case HfNaming::kLlama:
    case HfNaming::kMixtral:
    case HfNaming::kDeepseek:
      return add_llama_tensors(list, spec, {"input_layernorm", "self_attn"});
    case HfNaming::kGemma3:
      return add_llama_tensors(list, spec,
                               {"input_layernorm", "self_attn", "post_attention_layernorm"});
    case HfNaming::kPhi3:
      return add_phi3_tensors(list, spec);
    case HfNaming::kBackbone:
      return add_llama_tensors(list, spec, {"norm", "mixer"});
    case HfNaming::kGpt2:
      check_gpt2(spec);
      list.add_norm("ln_1", spec, "attention_norm");
      list.add_conv1d("attn.c_attn", spec.width, 3 * spec.width, "attention.qkv");
      list.add_conv1d("attn.c_proj", spec.width, spec.width, "attention.proj");
  }
}

/// Grouped-query attention. Each head is on one tensor rank. If there are fewer key/value heads
/// than ranks, each is on several ranks. Context ranks exchange heads or keys and values
/// (ops/context_attention.h).
constexpr BlockDefinition kWholeAttention{.name = "attention",
                                          .role = BlockRole::kMixer,
                                          .takes_adapters = true,
                                          .needed_sizes = kNeededSizes,
                                          .derive_sizes = derive_sizes,
                                          .check_sizes = check_sizes,
                                          .tensor_fault = tensor_fault,
                                          .exchanged_heads = local_exchanged_heads,
                                          .check_context = check_context,
                                          .add_parameters = add_parameters,
                                          .forward = forward,
                                          .cost = cost,
                                          .add_hf_tensors = add_hf_tensors};

/// The same, but a query sees the last ModelSpec::sliding_window keys only
/// (ops/attention_window.h).
constexpr BlockDefinition in_windows(BlockDefinition block) {
  block.variant_of = block.name;
  block.name = "sliding";
  block.needed_sizes = kNeededSizesOfWindows;
  block.check_sizes = check_sizes_of_windows;
  block.forward = forward_in_windows;
  block.cost = cost_in_windows;
  return block;
}

}  // namespace

extern const BlockDefinition kAttentionBlock = kWholeAttention;
extern const BlockDefinition kSlidingBlock = in_windows(kWholeAttention);

}  // namespace braid
