#include "hugging_face/read_models.h"
#include "hugging_face/rope_config.h"
#include "hugging_face/window_config.h"

namespace braid {

ModelSpec read_gemma3(ConfigKeys& keys, const HfClass& type) {
  ModelSpec model;
  model.layers = keys.size("num_hidden_layers", kMaxLayers, 26);
  model.width = keys.size("hidden_size", kMaxSize, 2304);
  model.heads = keys.size("num_attention_heads", kMaxHeads, 8);
  model.kv_heads = keys.size("num_key_value_heads", kMaxHeads, 4);
  model.head_size = keys.size("head_dim", kMaxHeadSize, 256);
  model.ffn = keys.size("intermediate_size", kMaxSize, 9216);
  model.vocabulary = keys.size("vocab_size", kMaxSize, 262208);
  model.max_positions = keys.size("max_position_embeddings", kMaxSize, 131072);
  model.tied_embeddings = keys.flag("tie_word_embeddings", true);
  model.norm_offset = 1;
  model.post_norms = true;
  model.scale_embedding = true;
  model.query_pre_attn_scalar = keys.size("query_pre_attn_scalar", kMaxSize, 256);
  model.norm_epsilon = keys.number("rms_norm_eps", 1e-6, 0, 1);
  model.init_std = keys.number("initializer_range", 0.02, 0, 10);
  keys.require_text("hidden_activation", {"gelu_pytorch_tanh"});
  for (const char* const key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    keys.require_none(key, "braid has no soft caps of scores and logits");
  }
  keys.require_flag("use_bidirectional_attention", false, false);
  keys.value_of("_sliding_window_pattern");  // beside layer_types
  keys.require_flag("attention_bias", false, false);
  refuse_partial_rotation(keys);
  read_windows(keys, model, type);
  read_gemma_rope(keys, model);
  return model;
}

}  // namespace braid
