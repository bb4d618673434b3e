#include "hugging_face/tensor_names.h"

#include <array>

#include "base/errors.h"
#include "model/blocks/block.h"

namespace braid {
namespace {

constexpr std::array kClasses = {
    HfClass{"LlamaForCausalLM", "llama", HfNaming::kLlama, kLlamaStyle, false},
    HfClass{"Qwen2ForCausalLM", "qwen2", HfNaming::kLlama, kLlamaStyle, true},
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
      return {"model.embed_tokens.weight", "", "model.layers", "model.norm"};
    case HfNaming::kGpt2:
      return {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h",
              "transformer.ln_f"};
  }
  throw_internal_error("no names of tensors");
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
    found = each.style == model.style && is_better ? &each : found;
  }
  if (found == nullptr || model.layers != LayerPattern(model.layers.size())) {
    throw_config_error(
        "model.pattern = \"{}\": Hugging Face has no class for such a model; those of braid have "
        "layers \"{}\" only",
        model.layers.text(), layer_name({}));
  }
  return *found;
}

bool is_hf_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace braid
