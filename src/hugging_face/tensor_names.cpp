#include "hugging_face/tensor_names.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/errors.h"
#include "base/text.h"
#include "model/blocks/block.h"
#include "model/families.h"
#include "model/mtp.h"

namespace braid {
namespace {

constexpr LayerSpec kStates{.mixer = &kMambaBlock, .feed_forward = nullptr};
constexpr std::array kMamba2Layers = {kStates};
constexpr std::array kNemotronHLayers = {
    kStates, LayerSpec{.mixer = &kAttentionBlock, .feed_forward = nullptr},
    LayerSpec{.mixer = nullptr, .feed_forward = &kMlpBlock},
    LayerSpec{.mixer = nullptr, .feed_forward = &kMoeBlock}};

constexpr std::array kClasses = {
    HfClass{"LlamaForCausalLM", "llama", HfNaming::kLlama, kLlamaStyle, false},
    HfClass{.architecture = "MistralForCausalLM",
            .model_type = "mistral",
            .style = kLlamaStyle,
            .windows = HfWindows::kAll},
    HfClass{.architecture = "MinistralForCausalLM",
            .model_type = "ministral",
            .style = kLlamaStyle,
            .windows = HfWindows::kSome},
    HfClass{.architecture = "Qwen2ForCausalLM",
            .model_type = "qwen2",
            .style = kLlamaStyle,
            .qkv_bias = true,
            .windows = HfWindows::kSome},
    HfClass{.architecture = "Qwen3ForCausalLM",
            .model_type = "qwen3",
            .style = kQwen3Style,
            .windows = HfWindows::kSome},
    HfClass{.architecture = "Phi3ForCausalLM",
            .model_type = "phi3",
            .naming = HfNaming::kPhi3,
            .style = kPhi3Style,
            .windows = HfWindows::kAll},
    HfClass{.architecture = "Gemma3ForCausalLM",
            .model_type = "gemma3_text",
            .naming = HfNaming::kGemma3,
            .style = kGemma3Style,
            .windows = HfWindows::kSome},
    HfClass{.architecture = "Qwen2MoeForCausalLM",
            .model_type = "qwen2_moe",
            .style = kLlamaStyle,
            .qkv_bias = true,
            .experts = true,
            .some_mlps = true,
            .shared_expert = true},
    HfClass{.architecture = "Qwen3MoeForCausalLM",
            .model_type = "qwen3_moe",
            .style = kQwen3Style,
            .experts = true,
            .some_mlps = true},
    HfClass{.architecture = "MixtralForCausalLM",
            .model_type = "mixtral",
            .naming = HfNaming::kMixtral,
            .style = kLlamaStyle,
            .experts = true},
    HfClass{.architecture = "OlmoeForCausalLM",
            .model_type = "olmoe",
            .style = kOlmoeStyle,
            .experts = true},
    HfClass{.architecture = "DeepseekV2ForCausalLM",
            .model_type = "deepseek_v2",
            .naming = HfNaming::kDeepseek,
            .style = kLlamaStyle,
            .experts = true,
            .some_mlps = true,
            .shared_expert = true,
            .mixer = &kMlaBlock},
    HfClass{.architecture = "DeepseekV3ForCausalLM",
            .model_type = "deepseek_v3",
            .naming = HfNaming::kDeepseek,
            .style = kLlamaStyle,
            .experts = true,
            .some_mlps = true,
            .shared_expert = true,
            .mixer = &kMlaBlock,
            .sigmoid = true},
    HfClass{.architecture = "Mamba2ForCausalLM",
            .model_type = "mamba2",
            .naming = HfNaming::kBackbone,
            .style = kMamba2Style,
            .layers = kMamba2Layers},
    HfClass{.architecture = "NemotronHForCausalLM",
            .model_type = "nemotron_h",
            .naming = HfNaming::kBackbone,
            .style = kNemotronHStyle,
            .experts = true,
            .shared_expert = true,
            .sigmoid = true,
            .layers = kNemotronHLayers},
    HfClass{"GPT2LMHeadModel", "gpt2", HfNaming::kGpt2, kGpt2Style, true},
};

/// Of layers of multi-token prediction, which have the numbers behind those of the model's layers.
constexpr std::string_view kPredictionLayers = "model.layers.";

/// Names of tensors outside the layers, and the prefixes of layers.
struct ModelNames {
  std::string_view tokens;
  std::string_view positions;
  std::string_view layers;
  std::string_view norm;
};

ModelNames names_of(HfNaming naming, bool has_fused_experts) {
  switch (naming) {
    case HfNaming::kLlama:
    case HfNaming::kMixtral:
    case HfNaming::kPhi3:
    case HfNaming::kGemma3:
    case HfNaming::kDeepseek:
      return {"model.embed_tokens.weight", "", "model.layers", "model.norm"};
    case HfNaming::kBackbone:
      if (has_fused_experts) {
        return {"model.embeddings.weight", "", "model.layers", "model.norm_f"};
      }
      return {"backbone.embeddings.weight", "", "backbone.layers", "backbone.norm_f"};
    case HfNaming::kGpt2:
      return {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h",
              "transformer.ln_f"};
  }
  throw_internal_error("no names of tensors");
}

LayerSpec dense_layer(const HfClass& type) {
  return {.mixer = type.mixer};
}

LayerSpec expert_layer(const HfClass& type) {
  return {.mixer = type.mixer, .feed_forward = &kMoeBlock};
}

bool has_windows_of(const HfClass& type, const LayerPattern& layers) {
  const auto is_sliding = [](const LayerSpec& layer) { return layer.mixer == &kSlidingBlock; };
  return type.windows == HfWindows::kSome || !layers.has(kSlidingBlock) ||
         (type.windows == HfWindows::kAll && std::ranges::all_of(layers, is_sliding));
}

bool has_layers_of(const HfClass& type, const LayerPattern& all_layers) {
  if (!has_windows_of(type, all_layers)) {
    return false;
  }
  const LayerPattern layers = all_layers.replaced(kSlidingBlock, kAttentionBlock);
  if (!type.layers.empty()) {
    return std::ranges::all_of(layers, [&](const LayerSpec& layer) {
      return std::ranges::find(type.layers, layer) != type.layers.end();
    });
  }
  const bool has_dense = !type.experts || type.some_mlps;
  return std::ranges::all_of(layers,
                             [&](const LayerSpec& layer) {
                               return (type.experts && layer == expert_layer(type)) ||
                                      (has_dense && layer == dense_layer(type));
                             }) &&
         type.experts == layers.has(kMoeBlock);
}

/// "\"attention+mlp\" or \"attention+moe\"": those of the classes with this style.
std::string layers_of_classes(const ModelStyle& style) {
  std::vector<std::string> names;
  const auto add = [&](const LayerSpec& layer) {
    const std::string name = fmt::format("\"{}\"", layer_name(layer));
    if (std::ranges::find(names, name) == names.end()) {
      names.push_back(name);
    }
  };
  for (const HfClass& each : kClasses) {
    if (each.style != style) {
      continue;
    }
    std::ranges::for_each(each.layers, add);
    if (each.layers.empty()) {
      add(each.experts ? expert_layer(each) : dense_layer(each));
    }
    if (each.windows != HfWindows::kNone) {
      add({.mixer = &kSlidingBlock});
    }
  }
  return join(names, " or ");
}

/// DeepSeek's classes put dense layers in front of those with experts.
void check_order(const ModelSpec& model, const HfClass& type) {
  const LayerPattern& layers = model.layers;
  const auto first = std::ranges::find(layers, expert_layer(type));
  if (std::any_of(first, layers.end(),
                  [&](const LayerSpec& layer) { return layer == dense_layer(type); })) {
    throw_config_error("model.pattern = \"{}\": a {} has all layers with \"mlp\" first",
                       layers.text(), type.architecture);
  }
}

/// Phi-3's class has parts of heads that are rotated, and of scalings longrope alone.
void check_rotary(const ModelSpec& model, const HfClass& type) {
  const RopeType scaling = model.rope_scaling.type;
  if (type.naming == HfNaming::kPhi3) {
    if (scaling != RopeType::kDefault && scaling != RopeType::kLongrope) {
      throw_config_error("model.rope_type = \"{}\": a {} has \"{}\" or \"{}\" only",
                         rope_type_name(scaling), type.architecture,
                         rope_type_name(RopeType::kDefault), rope_type_name(RopeType::kLongrope));
    }
    return;
  }
  if (model.partial_rotary_factor != 1) {
    throw_config_error(
        "model.partial_rotary_factor = {}: a {} rotates whole heads; a Phi3ForCausalLM "
        "(model.family = \"phi3\") has the key",
        model.partial_rotary_factor, type.architecture);
  }
}

/// What Gemma's class alone has, and always.
void check_gemma_keys(const ModelSpec& model, const HfClass& type) {
  const bool is_gemma = type.naming == HfNaming::kGemma3;
  const auto require = [&](bool fits, std::string_view key, const auto& value, const auto& only) {
    if (!fits) {
      throw_config_error("model.{} = {}: a {} has {} only", key, value, type.architecture, only);
    }
  };
  require(model.norm_offset == (is_gemma ? 1 : 0), "norm_offset", model.norm_offset,
          is_gemma ? 1 : 0);
  require(model.post_norms == is_gemma, "post_norms", model.post_norms, is_gemma);
  require(model.scale_embedding == is_gemma, "scale_embedding", model.scale_embedding, is_gemma);
  if (is_gemma) {
    require(!model.qkv_bias, "qkv_bias", true, false);
    require(model.rope_scaling.type == RopeType::kDefault || model.rope_local_base_freq > 0 ||
                !model.layers.has(kSlidingBlock),
            "rope_local_base_freq", 0, "another base, and no scaling, in layers with windows");
    return;
  }
  require(model.query_pre_attn_scalar == 0 || model.query_pre_attn_scalar == model.head_size,
          "query_pre_attn_scalar", model.query_pre_attn_scalar, 0);
  require(model.rope_local_base_freq == 0, "rope_local_base_freq", model.rope_local_base_freq, 0);
}

/// What files cannot say about states: Mamba2 has a multiple of its width, and Nemotron-H no upper
/// limit of steps.
void check_states(const ModelSpec& model, const HfClass& type) {
  if (!model.layers.has(kMambaBlock)) {
    return;
  }
  const int64_t inner = model.mamba_num_heads * model.mamba_head_dim;
  const bool is_mamba2 = model.style == kMamba2Style;
  if (is_mamba2 && inner % model.width != 0) {
    throw_config_error(
        "model.mamba_num_heads = {}: a {} has a multiple of model.width = {} features in all heads "
        "of model.mamba_head_dim = {} together",
        model.mamba_num_heads, type.architecture, model.width, model.mamba_head_dim);
  }
  if (!is_mamba2 && model.mamba_dt_max != 0) {
    throw_config_error(
        "model.mamba_dt_max = {}: a {} has no such limit; set model.mamba_dt_max = 0",
        model.mamba_dt_max, type.architecture);
  }
}

/// Refuses what files of the class cannot say about a router and its experts.
class RouterCheck {
 public:
  RouterCheck(const ModelSpec& model, const HfClass& type)
      : model_(model), router_(model.router), type_(type) {}

  void check() const {
    require(router_.sigmoid == type_.sigmoid, "router_scores",
            router_.sigmoid ? "sigmoid" : "softmax", type_.sigmoid ? "sigmoid" : "softmax");
    require(router_.bias == type_.sigmoid, "router_bias", router_.bias,
            type_.sigmoid ? "true" : "false");
    require(!router_.logit_bias, "router_logit_bias", true, "false");
    check_shared_expert();
    if (is_backbone()) {
      return;
    }
    if (type_.naming == HfNaming::kDeepseek) {
      return require(type_.sigmoid || !router_.normalize, "router_normalize", router_.normalize,
                     "false");
    }
    require(router_.scale == 1.0, "router_scale", router_.scale, "1");
    require(router_.groups == 1, "router_groups", router_.groups, "1");
    require(router_.normalize || type_.naming != HfNaming::kMixtral, "router_normalize", false,
            "true");
  }

 private:
  void require(bool fits, std::string_view key, const auto& value, std::string_view only) const {
    if (!fits) {
      throw_config_error("model.{} = {}: a {} has {} only", key, value, type_.architecture, only);
    }
  }

  bool is_backbone() const { return type_.naming == HfNaming::kBackbone; }

  void check_shared_expert() const {
    const int64_t ffn = model_.shared_ffn;
    require(type_.shared_expert || ffn == 0, "shared_ffn", ffn, "0");
    require(!type_.shared_expert || ffn > 0, "shared_ffn", ffn, "a positive number");
    const bool is_deepseek = type_.naming == HfNaming::kDeepseek;
    require(!is_deepseek || ffn % model_.expert_ffn == 0, "shared_ffn", ffn,
            fmt::format("multiples of model.expert_ffn = {}", model_.expert_ffn));
    const bool has_gate = type_.shared_expert && !is_deepseek && !is_backbone();
    require(model_.shared_gate == has_gate, "shared_gate", model_.shared_gate,
            has_gate ? "true" : "false");
  }

  const ModelSpec& model_;
  const RouterSpec& router_;
  const HfClass& type_;
};

/// The projections of a depth as one tensor, whose rows begin with those of the tokens: half a row
/// of theirs is one of ours.
void add_mtp_projection(HfTensorList& list, int64_t width) {
  for (int64_t row = 0; row < width; ++row) {
    const auto add_half = [&](std::string_view ours, int64_t theirs_row) {
      list.add("eh_proj.weight", {1, width}, ours, row);
      list.set_whole({width, 2 * width}, theirs_row);
    };
    add_half("embedding_projection.weight", 2 * row);
    add_half("hidden_projection.weight", 2 * row + 1);
  }
}

/// Layers of multi-token prediction as DeepSeek-V3 has them, behind the model's. Each repeats the
/// tables that it shares with the model.
void add_mtp_tensors(HfTensorList& list, const ModelSpec& model) {
  const Shape table{model.vocabulary, model.width};
  for (int64_t index = 0; index < model.mtp_depth; ++index) {
    const std::string theirs =
        fmt::format("{}{}.", kPredictionLayers, mtp_layer_number(model, index));
    list.enter(theirs, "");
    list.add("embed_tokens.weight", table, "embedding.tokens");
    list.set_copy();
    list.add("shared_head.head.weight", table,
             model.tied_embeddings ? "embedding.tokens" : "head.output");
    list.set_copy();
    list.enter(theirs, fmt::format("{}.", mtp_unit(index)));
    list.add_norm("enorm", model, "embedding_norm");
    list.add_norm("hnorm", model, "hidden_norm");
    add_mtp_projection(list, model.width);
    mtp_layer(model).for_each_block([&](const BlockDefinition& block) {
      block.add_hf_tensors(list, model, HfNaming::kDeepseek);
    });
    list.add_norm("shared_head.norm", model, "norm");
  }
}

}  // namespace

PieceRange piece_range(const HfTensor& tensor) {
  const int64_t begin = tensor.first_row * tensor.num_columns();
  return tensor.row_stride == 1 ? PieceRange{begin, 1, tensor.num_rows() * tensor.num_columns()}
                                : PieceRange{begin, tensor.num_rows(), tensor.num_columns()};
}

HfExperts experts_of_files(std::span<const std::string> names) {
  const bool fused = std::ranges::any_of(names, [](const std::string& name) {
    return name.ends_with(".experts.gate_up_proj") || name.ends_with(".experts.up_proj");
  });
  return fused ? HfExperts::kFused : HfExperts::kSeparate;
}

std::vector<HfTensor> hf_tensors(const ModelSpec& model, HfExperts experts) {
  const HfNaming naming = hf_class(model).naming;
  const ModelNames names =
      names_of(naming, experts == HfExperts::kFused && model.layers.has(kMoeBlock));
  HfTensorList list(experts);
  list.add(names.tokens, {model.vocabulary, model.width}, "embedding.tokens");
  if (model.style.positions == PositionKind::kLearned) {
    list.add(names.positions, {model.max_positions, model.width}, "embedding.positions");
  }
  for (int64_t layer = 0; layer < model.layers.size(); ++layer) {
    list.enter(fmt::format("{}.{}.", names.layers, layer), fmt::format("layers.{}.", layer));
    model.layers[layer].for_each_block(
        [&](const BlockDefinition& block) { block.add_hf_tensors(list, model, naming); });
  }
  list.enter("", "");
  list.add_norm(names.norm, model, "head.norm");
  if (!model.tied_embeddings) {
    list.add("lm_head.weight", {model.vocabulary, model.width}, "head.output");
  }
  if (has_hf_mtp(model)) {
    add_mtp_tensors(list, model);
  }
  return list.take();
}

std::span<const HfClass> hf_classes() {
  return kClasses;
}

const HfClass& hf_class(const ModelSpec& model) {
  const HfClass* found = nullptr;
  int most = -1;  // properties that classes with the same layers differ in
  for (const HfClass& each : kClasses) {
    const int equal =
        (each.qkv_bias == model.qkv_bias ? 1 : 0) + (each.sigmoid == model.router.sigmoid ? 1 : 0);
    if (each.style == model.style && has_layers_of(each, model.layers) && equal > most) {
      found = &each;
      most = equal;
    }
  }
  if (found == nullptr) {
    throw_config_error(
        "model.pattern = \"{}\": Hugging Face has no class that braid knows for such a model; "
        "those of family \"{}\" have layers {} only",
        model.layers.text(), family_name(model.style), layers_of_classes(model.style));
  }
  check_rotary(model, *found);
  check_gemma_keys(model, *found);
  if (found->experts && model.layers.has(kMoeBlock)) {
    RouterCheck(model, *found).check();
  }
  if (found->naming == HfNaming::kDeepseek) {
    check_order(model, *found);
  }
  if (found->naming == HfNaming::kBackbone) {
    check_states(model, *found);
  }
  return *found;
}

bool is_hf_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

bool has_hf_mtp(const ModelSpec& model) {
  const HfClass& type = hf_class(model);
  return type.naming == HfNaming::kDeepseek && type.sigmoid;
}

bool is_hf_prediction_layer(const ModelSpec& model, std::string_view name) {
  if (hf_class(model).naming != HfNaming::kDeepseek || !name.starts_with(kPredictionLayers)) {
    return false;
  }
  int64_t layer = -1;
  std::from_chars(name.data() + kPredictionLayers.size(), name.data() + name.size(), layer);
  return layer >= model.layers.size();
}

int64_t stored_mtp_depth(const ModelSpec& model, std::span<const std::string> names) {
  int64_t depth = 0;
  while (has_hf_mtp(model) &&
         std::ranges::find(names, fmt::format("{}{}.eh_proj.weight", kPredictionLayers,
                                              mtp_layer_number(model, depth))) != names.end()) {
    ++depth;
  }
  return depth;
}

}  // namespace braid
