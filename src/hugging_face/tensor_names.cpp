#include "hugging_face/tensor_names.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "model/blocks/block.h"
#include "model/families.h"

namespace braid {
namespace {

constexpr std::array kClasses = {
    HfClass{"LlamaForCausalLM", "llama", HfNaming::kLlama, kLlamaStyle, false},
    HfClass{"Qwen2ForCausalLM", "qwen2", HfNaming::kLlama, kLlamaStyle, true},
    HfClass{"Qwen3ForCausalLM", "qwen3", HfNaming::kLlama, kQwen3Style},
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
    HfClass{"GPT2LMHeadModel", "gpt2", HfNaming::kGpt2, kGpt2Style, true},
};

/// Names of tensors outside the layers, and the prefixes of layers.
struct ModelNames {
  std::string_view tokens;
  std::string_view positions;
  std::string_view layers;
  std::string_view norm;
};

ModelNames names_of(HfNaming naming) {
  switch (naming) {
    case HfNaming::kLlama:
    case HfNaming::kMixtral:
      return {"model.embed_tokens.weight", "", "model.layers", "model.norm"};
    case HfNaming::kGpt2:
      return {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h",
              "transformer.ln_f"};
  }
  throw_internal_error("no names of tensors");
}

bool has_layers_of(const HfClass& type, const LayerPattern& layers) {
  const LayerSpec experts{.feed_forward = &kMoeBlock};
  return std::ranges::all_of(layers,
                             [&](const LayerSpec& layer) {
                               return type.experts ? layer == experts ||
                                                         (type.some_mlps && layer == LayerSpec())
                                                   : layer == LayerSpec();
                             }) &&
         type.experts == layers.has(kMoeBlock);
}

/// "\"attention+mlp\" or \"attention+moe\"": those of the classes with this style.
std::string layers_of_classes(const ModelStyle& style) {
  const auto has = [&](bool experts) {
    return std::ranges::any_of(kClasses, [&](const HfClass& each) {
      return each.style == style && each.experts == experts;
    });
  };
  const std::string dense = fmt::format("\"{}\"", layer_name({}));
  const std::string experts = fmt::format("\"{}\"", layer_name({.feed_forward = &kMoeBlock}));
  return has(false) && has(true) ? fmt::format("{} or {}", dense, experts)
         : has(true)             ? experts
                                 : dense;
}

/// The classes with experts have routers of one kind.
void check_router(const ModelSpec& model, const HfClass& type) {
  if (!type.experts) {
    return;
  }
  const auto require = [&](bool fits, std::string_view key, const auto& value,
                           std::string_view only) {
    if (!fits) {
      throw_config_error("model.{} = {}: a {} has {} only", key, value, type.architecture, only);
    }
  };
  const RouterSpec& router = model.router;
  require(!router.sigmoid, "router_scores", "sigmoid", "softmax");
  require(router.scale == 1.0, "router_scale", router.scale, "1");
  require(router.groups == 1, "router_groups", router.groups, "1");
  require(type.shared_expert || model.shared_ffn == 0, "shared_ffn", model.shared_ffn, "0");
  require(!type.shared_expert || model.shared_ffn > 0, "shared_ffn", model.shared_ffn,
          "a positive number");
  require(!type.shared_expert || model.shared_gate, "shared_gate", model.shared_gate, "true");
  require(router.normalize || type.naming != HfNaming::kMixtral, "router_normalize", false, "true");
}

}  // namespace

PieceRange piece_range(const HfTensor& tensor) {
  const int64_t begin = tensor.first_row * tensor.num_columns();
  return tensor.row_stride == 1 ? PieceRange{begin, 1, tensor.num_rows() * tensor.num_columns()}
                                : PieceRange{begin, tensor.num_rows(), tensor.num_columns()};
}

std::vector<HfTensor> hf_tensors(const ModelSpec& model) {
  const HfNaming naming = hf_class(model).naming;
  const ModelNames names = names_of(naming);
  HfTensorList list;
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
  return list.take();
}

std::span<const HfClass> hf_classes() {
  return kClasses;
}

const HfClass& hf_class(const ModelSpec& model) {
  const HfClass* found = nullptr;
  for (const HfClass& each : kClasses) {
    const bool is_better = found == nullptr || each.qkv_bias == model.qkv_bias;
    const bool fits = each.style == model.style && has_layers_of(each, model.layers);
    found = fits && is_better ? &each : found;
  }
  if (found == nullptr) {
    throw_config_error(
        "model.pattern = \"{}\": Hugging Face has no class that braid knows for such a model; "
        "those of family \"{}\" have layers {} only",
        model.layers.text(), family_name(model.style), layers_of_classes(model.style));
  }
  check_router(model, *found);
  return *found;
}

bool is_hf_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace braid
