#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"

namespace braid {

/// One layout: overrides of the base configuration below, separated by blanks; keys without a
/// section are of [parallel].
struct Layout {
  std::string model;
  std::string overrides;
};

inline void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.model << " " << layout.overrides;
}

// Vocabularies do not come out even over any of the layouts; heads, layers and rows do.
inline constexpr const char* kLlamaModel =
    "model.family=llama model.layers=4 model.width=24 model.heads=4 model.kv_heads=2 "
    "model.head_size=4 model.ffn=24 model.vocabulary=101";
inline constexpr const char* kGpt2Model =
    "model.family=gpt2 model.layers=4 model.width=24 model.heads=4 model.ffn=24 "
    "model.vocabulary=101 model.tied_embeddings=true";
inline constexpr const char* kQwenModel =
    "model.family=llama model.layers=4 model.width=24 model.heads=4 model.kv_heads=1 "
    "model.head_size=6 model.ffn=24 model.vocabulary=101 model.qkv_bias=true "
    "model.tied_embeddings=true";

inline constexpr const char* kThreeKvHeads =
    "model.family=llama model.layers=2 model.width=24 model.heads=6 model.kv_heads=3 "
    "model.head_size=4 model.ffn=24 model.vocabulary=101";

/// Experts of which a token has two of six, beside an MLP, with norms of heads.
inline constexpr const char* kExpertsModel =
    "model.family=qwen3 model.pattern=attention+moe*2,attention+mlp,attention+moe model.width=24 "
    "model.heads=4 model.kv_heads=2 model.head_size=4 model.ffn=24 model.experts=6 "
    "model.experts_per_token=2 model.expert_ffn=10 model.vocabulary=101 moe.z_loss=0.001";
/// The same with trained biases of routers' logits, and both losses of balance.
inline const std::string kLogitBiasModel =
    std::string(kExpertsModel) +
    " model.router_logit_bias=true moe.balance_loss=0.02 moe.sequence_balance_loss=0.01";

/// Sigmoids, groups of experts and an expert for all tokens.
inline constexpr const char* kSharedExpertModel =
    "model.family=llama model.pattern=attention+mlp,attention+moe*3 model.width=24 model.heads=4 "
    "model.kv_heads=2 model.head_size=4 model.ffn=24 model.experts=8 model.experts_per_token=3 "
    "model.expert_ffn=6 model.shared_ffn=12 model.router_scores=sigmoid model.router_groups=4 "
    "model.router_kept_groups=2 model.router_scale=2.5 model.vocabulary=101";

/// An expert for all tokens with a gate.
inline constexpr const char* kGatedExpertModel =
    "model.family=llama model.pattern=attention+moe*3,attention+mlp model.width=24 model.heads=4 "
    "model.kv_heads=2 model.head_size=4 model.ffn=24 model.experts=5 model.experts_per_token=2 "
    "model.expert_ffn=6 model.shared_ffn=12 model.shared_gate=true model.router_normalize=false "
    "model.qkv_bias=true model.vocabulary=101";

/// As DeepSeek-V3: latents of queries, keys and values, scaled rotary frequencies, biases of
/// routers that balance, and a loss of balance inside sequences.
inline constexpr const char* kDeepseekModel =
    "model.family=llama model.pattern=mla+mlp,mla+moe*3 model.width=24 model.heads=4 "
    "model.q_lora_rank=10 model.kv_lora_rank=6 model.qk_nope_head_dim=3 model.qk_rope_head_dim=2 "
    "model.v_head_dim=4 model.ffn=24 model.experts=8 model.experts_per_token=3 model.expert_ffn=6 "
    "model.shared_ffn=12 model.router_scores=sigmoid model.router_bias=true model.router_groups=4 "
    "model.router_kept_groups=2 model.router_scale=2.5 model.vocabulary=101 model.rope_type=yarn "
    "model.rope_factor=4 model.rope_original_max_position_embeddings=8 model.rope_mscale=1 "
    "model.rope_mscale_all_dim=0.5 moe.sequence_balance_loss=0.02";
/// Queries without a latent, value heads that are the longest, and plain attention beside it.
inline constexpr const char* kLatentsModel =
    "model.family=llama model.pattern=mla+mlp*2,attention+mlp,mla model.width=24 model.heads=4 "
    "model.kv_lora_rank=7 model.qk_nope_head_dim=3 model.qk_rope_head_dim=4 model.v_head_dim=9 "
    "model.ffn=24 model.vocabulary=101";

/// States of two groups of heads, attention without positions, and squares of ReLU.
inline constexpr const char* kHybridModel =
    "model.family=nemotron_h model.pattern=M-M*-M model.width=24 model.heads=4 model.kv_heads=2 "
    "model.head_size=4 model.ffn=48 model.mamba_num_heads=4 model.mamba_head_dim=3 "
    "model.ssm_state_size=5 model.mamba_n_groups=2 model.mamba_chunk_size=5 "
    "model.mamba_dt_min=0.02 model.vocabulary=101";

/// The same with experts as Nemotron 3 has them: without gates, chosen by sigmoids with biases that
/// balance loads, and one for all tokens.
inline const std::string kHybridExpertsModel =
    std::string(kHybridModel) +
    " model.pattern=ME*M-E model.experts=8 model.experts_per_token=3 model.expert_ffn=6 "
    "model.shared_ffn=12 model.router_scores=sigmoid model.router_bias=true "
    "model.router_scale=2.5";

/// Two depths of multi-token prediction that look the tokens up in the embedding once more.
inline const std::string kMtpModel = std::string(kLlamaModel) + " model.mtp_depth=2";
inline const std::string kTiedMtpModel =
    std::string(kQwenModel) + " model.mtp_depth=1 model.mtp_loss_weight=0.4";
inline const std::string kHybridMtpModel = std::string(kHybridModel) + " model.mtp_depth=2";
inline const std::string kHybridExpertsMtpModel = kHybridExpertsModel + " model.mtp_depth=1";
inline const std::string kExpertsMtpModel = std::string(kExpertsModel) + " model.mtp_depth=1";

/// Layers that differ in what they have and take.
inline constexpr const char* kPatternModel =
    "model.family=llama model.pattern=attention,mlp*3,attention+mlp,attention*2,mlp "
    "model.width=24 model.heads=4 model.kv_heads=2 model.head_size=4 model.ffn=48 "
    "model.vocabulary=101";

/// Windows of which none comes out even over the layouts, and a layer without one.
inline constexpr const char* kWindowsModel =
    "model.family=llama model.pattern=sliding+mlp*2,attention+mlp,sliding+mlp model.width=24 "
    "model.heads=4 model.kv_heads=2 model.head_size=4 model.sliding_window=5 model.ffn=24 "
    "model.vocabulary=101";

/// As Gemma 3: windows with positions of their own, norms behind blocks, embeddings that are
/// scaled.
inline constexpr const char* kGemmaModel =
    "model.family=gemma3_text model.pattern=sliding+mlp*2,attention+mlp,sliding+mlp model.width=24 "
    "model.heads=4 model.kv_heads=2 model.head_size=8 model.sliding_window=5 model.ffn=24 "
    "model.query_pre_attn_scalar=9 model.rope_theta=1000 model.rope_local_base_freq=100 "
    "model.rope_type=linear model.rope_factor=2 model.vocabulary=101";

/// Half of each head is rotated, with the factors of sequences longer than eight tokens.
inline constexpr const char* kLongropeModel =
    "model.family=phi3 model.layers=4 model.width=24 model.heads=4 model.kv_heads=2 "
    "model.head_size=8 model.partial_rotary_factor=0.5 model.ffn=24 model.vocabulary=101 "
    "model.rope_type=longrope model.rope_factor=4 model.rope_original_max_position_embeddings=8 "
    "model.rope_short_factor=1,2 model.rope_long_factor=1.5,3";

inline std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> list;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) {
      list.push_back(text.substr(at, end - at));
    }
    at = end + 1;
  }
  return list;
}

inline RunConfig config_of(const Layout& layout) {
  std::vector<std::string> overrides = words(layout.model);
  for (const char* const base :
       {"model.init_std=0.1", "train.microbatch=2", "train.sequence=12", "train.global_batch=16",
        "eval.interval=0", "logging.run_folder=none"}) {
    overrides.emplace_back(base);
  }
  for (std::string& word : words(layout.overrides)) {
    overrides.push_back(word.find('.') < word.find('=') ? word : "parallel." + word);
  }
  const RunConfig config = parse_config("", "grid", overrides);
  validate(config);
  return resolved(config);
}

}  // namespace braid
