#include "hugging_face/tensor_names.h"

#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

/// Appends tensors under one pair of prefixes at a time.
class TensorList {
 public:
  void enter(std::string theirs, std::string ours) {
    theirs_ = std::move(theirs);
    ours_ = std::move(ours);
  }

  void add(std::string_view theirs, Shape shape, std::string_view ours, int64_t first_row = 0,
           int64_t row_stride = 1) {
    list_.push_back({.name = fmt::format("{}{}", theirs_, theirs),
                     .shape = shape,
                     .parameter = fmt::format("{}{}", ours_, ours),
                     .first_row = first_row,
                     .row_stride = row_stride});
  }

  /// Weight [in, out] and bias [out].
  void add_conv1d(std::string_view theirs, int64_t in, int64_t out, std::string_view ours) {
    add(fmt::format("{}.weight", theirs), {in, out}, fmt::format("{}.weight", ours));
    list_.back().transposed = true;
    add(fmt::format("{}.bias", theirs), {out}, fmt::format("{}.bias", ours));
  }

  void add_layernorm(std::string_view theirs, int64_t width, std::string_view ours) {
    for (const char* const part : {"weight", "bias"}) {
      add(fmt::format("{}.{}", theirs, part), {width}, fmt::format("{}.{}", ours, part));
    }
  }

  std::vector<HfTensor> take() { return std::move(list_); }

 private:
  std::string theirs_;
  std::string ours_;
  std::vector<HfTensor> list_;
};

void add_llama_attention(TensorList& list, const ModelSpec& model) {
  const int64_t query_rows = model.heads * model.head_size;
  const int64_t kv_rows = model.kv_heads * model.head_size;
  struct Projection {
    std::string_view name;
    int64_t first_row;
    int64_t rows;
  };
  for (const auto& [name, first_row, rows] :
       {Projection{"q_proj", 0, query_rows}, Projection{"k_proj", query_rows, kv_rows},
        Projection{"v_proj", query_rows + kv_rows, kv_rows}}) {
    list.add(fmt::format("self_attn.{}.weight", name), {rows, model.width}, "attention.qkv.weight",
             first_row);
    if (model.qkv_bias) {
      list.add(fmt::format("self_attn.{}.bias", name), {rows}, "attention.qkv.bias", first_row);
    }
  }
  list.add("self_attn.o_proj.weight", {model.width, query_rows}, "attention.proj.weight");
}

std::vector<HfTensor> llama_tensors(const ModelSpec& model) {
  TensorList list;
  list.add("model.embed_tokens.weight", {model.vocabulary, model.width}, "embedding.tokens");
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    list.enter(fmt::format("model.layers.{}.", layer), fmt::format("layers.{}.", layer));
    list.add("input_layernorm.weight", {model.width}, "attention_norm.weight");
    add_llama_attention(list, model);
    list.add("post_attention_layernorm.weight", {model.width}, "mlp_norm.weight");
    list.add("mlp.gate_proj.weight", {model.ffn, model.width}, "mlp.fc1.weight", 0, 2);
    list.add("mlp.up_proj.weight", {model.ffn, model.width}, "mlp.fc1.weight", 1, 2);
    list.add("mlp.down_proj.weight", {model.width, model.ffn}, "mlp.fc2.weight");
  }
  list.enter("", "");
  list.add("model.norm.weight", {model.width}, "head.norm.weight");
  if (!model.tied_embeddings) {
    list.add("lm_head.weight", {model.vocabulary, model.width}, "head.output");
  }
  return list.take();
}

std::vector<HfTensor> gpt2_tensors(const ModelSpec& model) {
  TensorList list;
  list.add("transformer.wte.weight", {model.vocabulary, model.width}, "embedding.tokens");
  list.add("transformer.wpe.weight", {model.max_positions, model.width}, "embedding.positions");
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    list.enter(fmt::format("transformer.h.{}.", layer), fmt::format("layers.{}.", layer));
    list.add_layernorm("ln_1", model.width, "attention_norm");
    list.add_conv1d("attn.c_attn", model.width, 3 * model.width, "attention.qkv");
    list.add_conv1d("attn.c_proj", model.width, model.width, "attention.proj");
    list.add_layernorm("ln_2", model.width, "mlp_norm");
    list.add_conv1d("mlp.c_fc", model.width, model.ffn, "mlp.fc1");
    list.add_conv1d("mlp.c_proj", model.ffn, model.width, "mlp.fc2");
  }
  list.enter("", "");
  list.add_layernorm("transformer.ln_f", model.width, "head.norm");
  if (!model.tied_embeddings) {
    list.add("lm_head.weight", {model.vocabulary, model.width}, "head.output");
  }
  return list.take();
}

void check_gpt2(const ModelSpec& model) {
  if (model.kv_heads != model.heads) {
    throw_config_error("model.kv_heads = {}: a GPT2LMHeadModel has as many as model.heads = {}",
                       model.kv_heads, model.heads);
  }
  if (model.heads * model.head_size != model.width) {
    throw_config_error(
        "model.head_size = {}: a GPT2LMHeadModel has model.width / model.heads = {} / {}",
        model.head_size, model.width, model.heads);
  }
  if (!model.qkv_bias) {
    throw_config_error("model.qkv_bias = false: a GPT2LMHeadModel has these biases");
  }
}

}  // namespace

PieceRange HfTensor::range() const {
  const int64_t begin = first_row * num_columns();
  return row_stride == 1 ? PieceRange{begin, 1, num_rows() * num_columns()}
                         : PieceRange{begin, num_rows(), num_columns()};
}

std::vector<HfTensor> hf_tensors(const ModelSpec& model) {
  if (model.family == ModelFamily::kLlama) {
    return llama_tensors(model);
  }
  check_gpt2(model);
  return gpt2_tensors(model);
}

HfClass hf_class(const ModelSpec& model) {
  if (model.family == ModelFamily::kGpt2) {
    return {"GPT2LMHeadModel", "gpt2"};
  }
  return model.qkv_bias ? HfClass{"Qwen2ForCausalLM", "qwen2"}
                        : HfClass{"LlamaForCausalLM", "llama"};
}

bool is_hf_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace braid
