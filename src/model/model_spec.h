#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace braid {

enum class ModelFamily : uint8_t {
  kLlama,  ///< RMSNorm, RoPE, grouped-query attention, SwiGLU, no biases (but for Qwen's on qkv)
  kGpt2,   ///< LayerNorm, learned positions, GELU, biases
};

/// Shape of a dense decoder. Names as in Hugging Face configurations where they differ are given
/// behind.
struct ModelSpec {
  ModelFamily family = ModelFamily::kLlama;
  int64_t layers = 0;         ///< num_hidden_layers
  int64_t width = 0;          ///< hidden_size
  int64_t heads = 0;          ///< num_attention_heads
  int64_t kv_heads = 0;       ///< num_key_value_heads
  int64_t head_size = 0;      ///< head_dim
  int64_t ffn = 0;            ///< intermediate_size
  int64_t vocabulary = 0;     ///< vocab_size
  int64_t max_positions = 0;  ///< max_position_embeddings; rows of the position table of GPT-2
  bool tied_embeddings = false;
  bool qkv_bias = false;
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
  double init_std = 0.02;

  /// Rows of the embedding table: the vocabulary rounded up to a multiple of 128, as Megatron does,
  /// so that GEMMs and vocabulary shards come out even. Padding columns of the logits take no part
  /// in the loss.
  int64_t padded_vocabulary() const { return (vocabulary + 127) / 128 * 128; }

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

struct ModelPreset {
  std::string_view name;
  std::string_view source;  ///< where the shape was published
  ModelSpec spec;
};

std::span<const ModelPreset> model_presets();

/// The preset of that name. Throws ConfigError with the nearest name.
const ModelPreset& find_preset(std::string_view name);

/// Throws ConfigError naming key, value and limit where the sizes cannot be a model.
void check_model(const ModelSpec& spec);

/// Width of a packed qkv row: (heads + 2 kv_heads) * head_size.
int64_t qkv_width(const ModelSpec& spec);

/// All weights, and those in matrices with the input embedding left out (which FLOPs are counted
/// on; a tied embedding counts once, as the output projection).
int64_t num_parameters(const ModelSpec& spec);
int64_t num_matrix_parameters(const ModelSpec& spec);

/// Model FLOPs of training on one token: 6 per matrix parameter, and 6 * layers * sequence * (heads
/// * head_size) for causal attention, recompute not counted. Source: Megatron-LM's count, see
/// docs/numerics.md.
double train_flops_per_token(const ModelSpec& spec, int64_t sequence);

std::string describe_model(const ModelSpec& spec);

}  // namespace braid
