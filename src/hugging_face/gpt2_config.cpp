#include <algorithm>

#include "hugging_face/read_models.h"

namespace braid {

ModelSpec read_gpt2(ConfigKeys& keys) {
  ModelSpec model;
  model.layers = keys.size("n_layer", kMaxLayers);
  model.width = keys.size("n_embd", kMaxSize);
  model.heads = keys.size("n_head", kMaxHeads);
  model.kv_heads = model.heads;
  model.head_size = std::max<int64_t>(1, model.width / model.heads);
  model.ffn = keys.size("n_inner", kMaxSize, 4 * model.width);
  model.vocabulary = keys.size("vocab_size", kMaxSize);
  model.max_positions = keys.size("n_positions", kMaxSize, 1024);
  model.tied_embeddings = keys.flag("tie_word_embeddings", true);
  model.norm_epsilon = keys.number("layer_norm_epsilon", 1e-5, 0, 1);
  model.init_std = keys.number("initializer_range", 0.02, 0, 10);
  keys.require_text("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  keys.require_flag("scale_attn_weights", true, true);
  keys.require_flag("scale_attn_by_inverse_layer_idx", false, false);
  keys.require_flag("add_cross_attention", false, false);
  return model;
}

}  // namespace braid
