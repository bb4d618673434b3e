#pragma once

#include <cstdint>
#include <string>

#include "model/layer_pattern.h"
#include "model/lora.h"
#include "ops/rope_scaling.h"

namespace braid {

enum class NormKind : uint8_t { kRmsNorm, kLayerNorm };
enum class PositionKind : uint8_t {
  kRope,     ///< queries and keys are rotated
  kLearned,  ///< a table is added to the embedding
  kNone,     ///< states and causal attention order the tokens
};
enum class Activation : uint8_t { kSwiglu, kGelu, kRelu2, kGeglu };
/// RMSNorm of queries and keys in front of their rotation.
enum class HeadNorm : uint8_t {
  kNone,
  kHead,  ///< each head alone, all with the same weights: Qwen3
  kRow,   ///< all query heads of a token together, and all key heads: OLMoE
};

/// Properties that all layers of a model share, apart from sizes. Families of models
/// (model/families.h) differ in these; later code never asks for the family.
struct ModelStyle {
  NormKind norm = NormKind::kRmsNorm;
  PositionKind positions = PositionKind::kRope;
  Activation activation = Activation::kSwiglu;
  bool linear_biases =
      false;  ///< of all matrices in layers but qkv, which ModelSpec::qkv_bias says
  HeadNorm head_norm = HeadNorm::kNone;
  bool joined_files = false;  ///< Hugging Face files have query, key and value in one tensor, and
                              ///< gate and up in one

  /// The activation multiplies half of its inputs by the other half, so MLPs and experts have a
  /// third matrix.
  bool is_gated() const {
    return activation == Activation::kSwiglu || activation == Activation::kGeglu;
  }

  friend bool operator==(const ModelStyle&, const ModelStyle&) = default;
};

/// RMSNorm, RoPE, SwiGLU, no biases.
constexpr ModelStyle kLlamaStyle{};
/// LayerNorm, learned positions, GELU, biases.
constexpr ModelStyle kGpt2Style{.norm = NormKind::kLayerNorm,
                                .positions = PositionKind::kLearned,
                                .activation = Activation::kGelu,
                                .linear_biases = true};

/// Llama's with norms of heads.
constexpr ModelStyle kQwen3Style{.head_norm = HeadNorm::kHead};
constexpr ModelStyle kOlmoeStyle{.head_norm = HeadNorm::kRow};

/// Llama's in other files.
constexpr ModelStyle kPhi3Style{.joined_files = true};

/// Llama's with norms of heads and gated GELU.
constexpr ModelStyle kGemma3Style{.activation = Activation::kGeglu, .head_norm = HeadNorm::kHead};

/// RMSNorm, no positions, no biases.
constexpr ModelStyle kMamba2Style{.positions = PositionKind::kNone};
/// The same with squares of ReLU in MLPs and experts, which have no gate.
constexpr ModelStyle kNemotronHStyle{.positions = PositionKind::kNone,
                                     .activation = Activation::kRelu2};

/// How a router chooses experts, and the weights of their results (ops/router.h).
struct RouterSpec {
  bool sigmoid = false;     ///< scores are sigmoids of logits; otherwise a softmax over the experts
  bool normalize = true;    ///< norm_topk_prob: the weights of a token's experts sum to `scale`
  double scale = 1.0;       ///< routed_scaling_factor
  bool bias = false;        ///< a bias per expert takes part in the choice, not in the weights
  bool logit_bias = false;  ///< a trained bias per expert is added to the logits
  int64_t groups = 1;       ///< n_group
  int64_t kept_groups = 1;  ///< topk_group: a token's experts are in so many groups
  bool force_balance =
      false;  ///< experts in turn instead of by score (ForcedChoice of ops/router.h)
  /// Rows that an expert takes of a rank's tokens in a microbatch, as a multiple of those that it
  /// has with equal loads; 0: all. Others are dropped (ops/drop_rows.h).
  double expert_capacity = 0.0;
  bool drops_by_position = false;  ///< the last rows, instead of those with the least weights

  friend bool operator==(const RouterSpec&, const RouterSpec&) = default;
};

/// Layers of a decoder and their sizes. The comments give the names in Hugging Face configurations
/// where they differ.
struct ModelSpec {
  ModelStyle style;
  LayerPattern layers;    ///< as many as num_hidden_layers
  int64_t width = 0;      ///< hidden_size
  int64_t heads = 0;      ///< num_attention_heads
  int64_t kv_heads = 0;   ///< num_key_value_heads
  int64_t head_size = 0;  ///< head_dim
  int64_t sliding_window =
      0;  ///< keys that a query sees in layers with "sliding"; 0: there are none
  /// Of multi-head latent attention, with their names there.
  int64_t q_lora_rank = 0;       ///< of the latent that queries are made of; 0: of the token itself
  int64_t kv_lora_rank = 0;      ///< of the latent that keys and values are made of
  int64_t qk_nope_head_dim = 0;  ///< elements of a query or key head without a position
  int64_t qk_rope_head_dim = 0;  ///< its rotated elements
  int64_t v_head_dim = 0;        ///< elements of a value head
  /// Of Mamba-2 layers (ops/mamba2.h), with Nemotron-H's names there.
  int64_t mamba_num_heads = 0;
  int64_t mamba_head_dim = 0;
  int64_t ssm_state_size = 0;
  int64_t mamba_n_groups = 0;     ///< n_groups: of heads with the same B and C, and of norms
  int64_t conv_kernel = 0;        ///< taps of the convolution
  int64_t mamba_chunk_size = 0;   ///< chunk_size
  double mamba_dt_min = 0.0;      ///< time_step_limit
  double mamba_dt_max = 0.0;      ///< 0: there is no limit
  int64_t ffn = 0;                ///< intermediate_size
  int64_t experts = 0;            ///< num_experts, num_local_experts, n_routed_experts
  int64_t experts_per_token = 0;  ///< num_experts_per_tok
  int64_t expert_ffn = 0;         ///< moe_intermediate_size: hidden features of each expert
  int64_t shared_ffn = 0;         ///< of the expert that works on all tokens; 0: there is none
  bool shared_gate = false;       ///< a gate per token scales its result, as in Qwen2-MoE
  RouterSpec router;
  int64_t vocabulary = 0;     ///< vocab_size
  int64_t max_positions = 0;  ///< max_position_embeddings; rows of the table of learned positions
  bool tied_embeddings = false;
  bool qkv_bias = false;
  int64_t norm_offset = 0;            ///< added to the weights of RMSNorms, 0 or 1 (ops/norm.h)
  bool post_norms = false;            ///< a norm also behind each block, before its result is added
  bool scale_embedding = false;       ///< embeddings of tokens are multiplied by sqrt(width)
  int64_t query_pre_attn_scalar = 0;  ///< scores are divided by its square root; 0: head_size
  /// Of multi-token prediction (model/mtp.h).
  int64_t mtp_depth = 0;         ///< num_nextn_predict_layers
  double mtp_loss_weight = 0.1;  ///< of the mean of the losses of all depths
  double rope_theta = 10000.0;
  double partial_rotary_factor = 1.0;  ///< of a head, the first part that is rotated
  double rope_local_base_freq =
      0.0;  ///< rope_theta of layers with "sliding", without a scaling; 0: as in the others
  RopeScaling rope_scaling;  ///< rope_scaling, or the same in rope_parameters
  double norm_epsilon = 1e-5;
  double init_std = 0.02;
  LoraSpec lora;  ///< adapters; then everything else is frozen

  /// Rows of the embedding table: the vocabulary rounded up to a multiple of 128, as in Megatron,
  /// so that GEMMs and vocabulary shards divide evenly. Padding columns of the logits take no part
  /// in the loss.
  int64_t padded_vocabulary() const { return (vocabulary + 127) / 128 * 128; }

  /// What scores are multiplied by.
  double attention_scale() const;

  /// Elements of a head that are rotated, rounded down as in transformers.
  int64_t rotated_size() const {
    return static_cast<int64_t>(static_cast<double>(head_size) * partial_rotary_factor);
  }

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

/// Throws ConfigError naming key, value and limit if the sizes are not those of a valid model.
void check_model(const ModelSpec& spec);

/// Number of all weights; of those that are trained; and of those in matrices that work on a token,
/// without the input embedding, which is the basis of the FLOP count (a tied embedding counts once,
/// as the output projection, and once more for each depth of multi-token prediction; of the
/// experts, those that a token goes to).
int64_t num_parameters(const ModelSpec& spec);
int64_t num_trained_parameters(const ModelSpec& spec);
int64_t num_matrix_parameters(const ModelSpec& spec);

/// Weights of the experts to which a token does not go.
int64_t num_idle_parameters(const ModelSpec& spec);

/// Model FLOPs of training on one token: 6 per matrix parameter, and 6 per multiplication between
/// tokens in the forward, which for causal attention is sequence * heads * head_size per layer
/// (with a window, of its pairs). With adapters, 6 per element of those and 4 per frozen one.
/// Multi-token prediction is counted, recompute is not. Source: Megatron-LM's count, see
/// docs/numerics.md.
double train_flops_per_token(const ModelSpec& spec, int64_t sequence);

std::string describe_model(const ModelSpec& spec);

}  // namespace braid
