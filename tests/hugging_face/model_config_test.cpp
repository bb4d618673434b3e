#include "hugging_face/model_config.h"
#include "model/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// As published with the models, but for a few keys about tokens and versions.
constexpr const char* kTinyLlama = R"({
  "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632,
  "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 22, "num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float32",
  "transformers_version": "4.31.0.dev0", "use_cache": true, "vocab_size": 32000})";
constexpr const char* kQwen = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
  "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false,
  "use_sliding_window": false, "vocab_size": 151936})";
constexpr const char* kGpt2 = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
  "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
  "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true}},
  "vocab_size": 50257})";

HfConfig parse(std::string_view text) {
  return parse_hf_config(text, "m/config.json");
}

/// The text with one entry more.
std::string with(std::string text, const std::string& entry) {
  return text.insert(1, entry + ",");
}

std::string replaced(std::string text, const std::string& part, const std::string& other) {
  const size_t found = text.find(part);
  EXPECT_NE(found, std::string::npos) << part;
  return text.replace(found, part.size(), other);
}

std::string fault_of(const std::string& text) {
  return message_of<DataError>([&] { parse(text); });
}

TEST(HfConfig, ReadsPublishedModels) {
  const HfConfig gpt2 = parse(kGpt2);
  EXPECT_EQ(gpt2.model, find_preset("gpt2-124m").spec);
  EXPECT_THAT(gpt2.ignored,
              ElementsAre("attn_pdrop = 0.1", "embd_pdrop = 0.1", "resid_pdrop = 0.1"));
  const HfConfig qwen = parse(kQwen);
  EXPECT_EQ(qwen.model, find_preset("qwen2.5-0.5b").spec);
  EXPECT_THAT(qwen.ignored, ElementsAre("use_mrope = false"));
  const HfConfig llama = parse(kTinyLlama);
  EXPECT_EQ(llama.model, (ModelSpec{.layers = 22,
                                    .width = 2048,
                                    .heads = 32,
                                    .kv_heads = 4,
                                    .head_size = 64,
                                    .ffn = 5632,
                                    .vocabulary = 32000,
                                    .max_positions = 2048}));
  EXPECT_THAT(llama.ignored, IsEmpty());
}

constexpr const char* kQwen3Moe = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
  "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
  "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
  "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
  "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
  "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
  "use_sliding_window": false, "vocab_size": 151936})";
constexpr const char* kMixtral = R"({
  "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
  "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
  "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000})";
constexpr const char* kQwen2Moe = R"({
  "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "decoder_sparse_step": 1, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 3584,
  "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 131072,
  "max_window_layers": 28, "model_type": "qwen2_moe", "moe_intermediate_size": 2560,
  "norm_topk_prob": false, "num_attention_heads": 28, "num_experts": 64, "num_experts_per_tok": 8,
  "num_hidden_layers": 28, "num_key_value_heads": 4, "output_router_logits": false,
  "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
  "shared_expert_intermediate_size": 20480, "sliding_window": 131072,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

TEST(HfConfig, ReadsModelsWithExperts) {
  const HfConfig qwen = parse(kQwen3Moe);
  EXPECT_EQ(qwen.model, find_preset("qwen3-30b-a3b").spec);
  EXPECT_THAT(qwen.ignored, ElementsAre("intermediate_size = 6144", "output_router_logits = false",
                                        "router_aux_loss_coef = 0.001"));
  const HfConfig gated = parse(kQwen2Moe);
  EXPECT_EQ(gated.model, find_preset("qwen2-57b-a14b").spec);
  EXPECT_THAT(gated.ignored,
              ElementsAre("intermediate_size = 18944", "output_router_logits = false",
                          "router_aux_loss_coef = 0.001"));
  const HfConfig mixtral = parse(kMixtral);
  EXPECT_EQ(mixtral.model, find_preset("mixtral-8x7b").spec);
  EXPECT_THAT(mixtral.ignored,
              ElementsAre("output_router_logits = false", "router_aux_loss_coef = 0.02"));
}

// As published, but for a few keys about tokens, and those of the remote code.
constexpr const char* kDeepseekV2 = R"({
  "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001,
  "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 5120,
  "initializer_range": 0.02, "intermediate_size": 12288, "kv_lora_rank": 512,
  "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size": 1536,
  "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 160, "n_shared_experts": 2,
  "norm_topk_prob": false, "num_attention_heads": 128, "num_experts_per_tok": 6,
  "num_hidden_layers": 60, "num_key_value_heads": 128, "pretraining_tp": 1, "q_lora_rank": 1536,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
    "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 16.0, "scoring_func": "softmax", "seq_aux": true,
  "tie_word_embeddings": false, "topk_group": 3, "topk_method": "group_limited_greedy",
  "torch_dtype": "bfloat16", "transformers_version": "4.39.3", "use_cache": true,
  "v_head_dim": 128, "vocab_size": 102400})";
constexpr const char* kDeepseekV3 = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
  "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
  "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
  "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
  "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
  "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
  "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": true,
  "v_head_dim": 128, "vocab_size": 129280})";

TEST(HfConfig, ReadsModelsWithLatents) {
  const HfConfig v2 = parse(kDeepseekV2);
  EXPECT_EQ(v2.model, find_preset("deepseek-v2").spec);
  EXPECT_THAT(v2.ignored, ElementsAre("aux_loss_alpha = 0.001", "seq_aux = true"));
  const HfConfig v3 = parse(kDeepseekV3);
  EXPECT_EQ(v3.model, find_preset("deepseek-v3").spec);
  EXPECT_THAT(v3.ignored, IsEmpty());
  const HfConfig direct =
      parse(replaced(kDeepseekV2, "\"q_lora_rank\": 1536", "\"q_lora_rank\": null"));
  EXPECT_EQ(direct.model.q_lora_rank, 0);
  // Greedy routers do not look at groups.
  const HfConfig greedy = parse(replaced(kDeepseekV2, "group_limited_greedy", "greedy"));
  EXPECT_EQ(greedy.model.router, (RouterSpec{.normalize = false, .scale = 16.0}));
}

TEST(HfConfig, RefusesWhatDeepseekModelsDoNot) {
  const auto changed = [](const char* text, const std::string& key, const std::string& from,
                          const std::string& to) {
    return fault_of(
        replaced(text, fmt::format("\"{}\": {}", key, from), fmt::format("\"{}\": {}", key, to)));
  };
  EXPECT_THAT(changed(kDeepseekV3, "topk_method", "\"noaux_tc\"", "\"greedy\""),
              HasSubstr("topk_method = \"greedy\": braid computes noaux_tc only"));
  EXPECT_THAT(changed(kDeepseekV2, "scoring_func", "\"softmax\"", "\"sigmoid\""),
              HasSubstr("scoring_func = \"sigmoid\": braid computes softmax only"));
  EXPECT_THAT(changed(kDeepseekV2, "norm_topk_prob", "false", "true"),
              HasSubstr("braid supports only norm_topk_prob = false"));
  EXPECT_THAT(changed(kDeepseekV2, "moe_layer_freq", "1", "2"),
              HasSubstr("moe_layer_freq = 2: braid supports only 1"));
  EXPECT_THAT(changed(kDeepseekV2, "num_key_value_heads", "128", "8"),
              HasSubstr("num_key_value_heads = 8: latent attention has one for each of 128 heads"));
  EXPECT_THAT(changed(kDeepseekV2, "rms_norm_eps", "1e-06", "1e-05"),
              HasSubstr("model.norm_epsilon = 1e-05: norms of latents have 1e-06"));
  EXPECT_THAT(fault_of(with(kDeepseekV3, R"("rope_interleave": false)")),
              HasSubstr("braid supports only rope_interleave = true"));
}

TEST(HfConfig, LayersWithoutExpertsAreNamed) {
  const std::string some =
      replaced(kQwen3Moe, "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0, 5], \"num_x\": 0");
  ModelSpec model = parse(some).model;
  EXPECT_EQ(model.layers.text(), "attention+mlp attention+moe*4 attention+mlp attention+moe*42");
  EXPECT_EQ(model.ffn, 6144);
  EXPECT_EQ(parse(print_hf_config(model, DType::kF32)).model, model);
  model =
      parse(replaced(kQwen3Moe, "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2")).model;
  EXPECT_EQ(model.layers.text().substr(0, 46), "attention+mlp attention+moe attention+mlp atte");
}

TEST(HfConfig, RefusesWhatRoutersDoNot) {
  EXPECT_EQ(fault_of(with(kMixtral, R"("router_jitter_noise": 0.1)")),
            "'m/config.json': router_jitter_noise = 0.1: braid adds no noise to a router's input");
  EXPECT_THAT(fault_of(with(kQwen2Moe, R"("qkv_bias": false)")),
              HasSubstr("qkv_bias = false: braid supports only qkv_bias = true"));
  EXPECT_THAT(fault_of(replaced(kQwen2Moe, "\"shared_expert_intermediate_size\": 20480",
                                "\"shared_expert_intermediate_size\": 0")),
              HasSubstr("shared_expert_intermediate_size = 0: must be an integer from 1"));
  EXPECT_THAT(
      fault_of(replaced(kMixtral, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9")),
      HasSubstr("model.experts_per_token = 9: must be at most 8"));
  EXPECT_THAT(fault_of(replaced(kQwen3Moe, "\"mlp_only_layers\": []", "\"mlp_only_layers\": 3")),
              HasSubstr("mlp_only_layers = 3: must be a list of layers"));
}

// As conversions of Mamba-2 have it; Python writes an infinity that JSON does not have.
constexpr const char* kMamba2 = R"({
  "architectures": ["Mamba2ForCausalLM"], "bos_token_id": 0, "chunk_size": 256, "conv_kernel": 4,
  "eos_token_id": 0, "expand": 2, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2560,
  "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "mamba2", "n_groups": 1,
  "num_heads": 80, "num_hidden_layers": 64, "pad_token_id": 0, "rescale_prenorm_residual": false,
  "residual_in_fp32": true, "rms_norm": true, "state_size": 128, "tie_word_embeddings": true,
  "time_step_floor": 0.0001, "time_step_limit": [0.0, Infinity], "time_step_max": 0.1,
  "time_step_min": 0.001, "time_step_rank": 160, "torch_dtype": "float32", "use_bias": false,
  "use_cache": true, "use_conv_bias": true, "vocab_size": 50288})";

TEST(HfConfig, ReadsAModelOfStates) {
  const HfConfig config = parse(kMamba2);
  EXPECT_EQ(config.model, find_preset("mamba2-2.7b").spec);
  EXPECT_TRUE(config.ignored.empty());
  const auto limits = [](const char* text) {
    const ModelSpec model = parse(replaced(kMamba2, "[0.0, Infinity]", text)).model;
    return std::pair(model.mamba_dt_min, model.mamba_dt_max);
  };
  EXPECT_EQ(limits("[0.01, {\"__float__\": \"Infinity\"}]"), std::pair(0.01, 0.0));
  EXPECT_EQ(limits("[0.01, 0.5]"), std::pair(0.01, 0.5));
  ModelSpec limited = config.model;
  limited.mamba_dt_min = 0.01;
  EXPECT_EQ(parse(print_hf_config(limited, DType::kF32)).model, limited);
  limited.mamba_dt_max = 0.5;
  EXPECT_EQ(parse(print_hf_config(limited, DType::kF32)).model, limited);
  EXPECT_THAT(fault_of(replaced(kMamba2, "[0.0, Infinity]", "[0.0]")),
              HasSubstr("time_step_limit = [0.0]: must be a list of two numbers"));
  EXPECT_THAT(fault_of(replaced(kMamba2, "\"use_conv_bias\": true", "\"use_conv_bias\": false")),
              HasSubstr("braid supports only use_conv_bias = true"));
  EXPECT_THAT(fault_of(replaced(kMamba2, "\"silu\"", "\"Infinity\"")),
              HasSubstr("hidden_act = \"Infinity\""));  // a text stays what it is
}

// Parts of NVIDIA's file of Nemotron-H-8B.
constexpr const char* kNemotronH = R"({
  "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attention_head_dim": 128, "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4,
  "eos_token_id": 2, "expand": 2, "hidden_dropout": 0.0, "hidden_size": 4096,
  "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
  "initializer_range": 0.02, "intermediate_size": 21504, "layer_norm_epsilon": 1e-05,
  "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 128,
  "mamba_proj_bias": false, "max_position_embeddings": 8192, "mlp_bias": false,
  "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8, "num_attention_heads": 32,
  "num_hidden_layers": 52, "num_key_value_heads": 8, "num_logits_to_keep": 1, "pad_token_id": 0,
  "rescale_prenorm_residual": true, "residual_in_fp32": false, "sliding_window": null,
  "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001,
  "time_step_max": 0.1, "time_step_min": 0.001, "torch_dtype": "bfloat16", "use_bias": false,
  "use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 131072})";

TEST(HfConfig, ReadsAHybrid) {
  const HfConfig config = parse(kNemotronH);
  EXPECT_EQ(config.model, find_preset("nemotron-h-8b").spec);
  EXPECT_TRUE(config.ignored.empty());
  const auto layers = [](const char* text) {
    return parse(with(kNemotronH, text)).model.layers.text();
  };
  EXPECT_EQ(layers(R"("layers_block_type": ["mamba", "mlp", "full_attention"])"),
            "mamba mlp attention");
  EXPECT_THAT(fault_of(with(kNemotronH, R"("layers_block_type": ["conv"])")),
              HasSubstr("braid knows no layer \"conv\""));
  EXPECT_THAT(fault_of(replaced(kNemotronH, "\"relu2\"", "\"silu\"")),
              HasSubstr("braid computes relu2 only"));
  ModelSpec model = config.model;
  model.mamba_dt_max = 1.0;
  EXPECT_EQ(message_of<ConfigError>([&] { print_hf_config(model, DType::kF32); }),
            "model.mamba_dt_max = 1: a NemotronHForCausalLM has no such limit; set "
            "model.mamba_dt_max = 0");
}

// Parts of NVIDIA's file of Nemotron-3-Nano-30B-A3B.
constexpr const char* kNemotron3Nano = R"({
  "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2,
  "head_dim": 128, "hidden_dropout": 0.0, "hidden_size": 2688,
  "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
  "initializer_range": 0.02, "intermediate_size": 1856, "layer_norm_epsilon": 1e-05,
  "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 64,
  "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32", "max_position_embeddings": 262144,
  "mlp_bias": false, "mlp_hidden_act": "relu2", "model_type": "nemotron_h",
  "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1,
  "n_groups": 8, "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 52,
  "num_key_value_heads": 2, "num_logits_to_keep": 1, "pad_token_id": 0,
  "rescale_prenorm_residual": true, "residual_in_fp32": false, "routed_scaling_factor": 2.5,
  "sliding_window": null, "ssm_state_size": 128, "tie_word_embeddings": false,
  "time_step_floor": 0.0001, "time_step_limit": [0.0, Infinity], "time_step_max": 0.1,
  "time_step_min": 0.001, "topk_group": 1, "torch_dtype": "bfloat16", "use_bias": false,
  "use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 131072})";

TEST(HfConfig, ReadsAHybridWithExperts) {
  const HfConfig config = parse(kNemotron3Nano);
  EXPECT_EQ(config.model, find_preset("nemotron-3-nano").spec);
  EXPECT_TRUE(config.ignored.empty());
  EXPECT_EQ(parse(print_hf_config(config.model, DType::kBF16)).model, config.model);
  EXPECT_THAT(fault_of(with(kNemotron3Nano, R"("moe_latent_size": 1024)")),
              HasSubstr("moe_latent_size = 1024: braid has no latents in front of experts"));
  EXPECT_THAT(fault_of(replaced(kNemotron3Nano, "\"num_experts_per_tok\": 6",
                                "\"num_experts_per_tok\": 129")),
              HasSubstr("model.experts_per_token = 129: must be at most 32"));
}

TEST(HfConfig, NamesOfIgnoredKeysStayShortAndPrintable) {
  EXPECT_THAT(parse(with(kTinyLlama, R"("a\nb": "x")")).ignored,
              ElementsAre("\"a\\u000Ab\" = \"x\""));
  const std::string long_name(200, 'k');
  EXPECT_THAT(parse(with(kTinyLlama, fmt::format("\"{}\": 1", long_name))).ignored,
              ElementsAre(fmt::format("\"{}...\" = 1", long_name.substr(0, 80))));
}

TEST(HfConfig, ReadsWhatItPrints) {
  for (const ModelPreset& preset : model_presets()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      EXPECT_EQ(parse(print_hf_config(preset.spec, dtype)).model, preset.spec) << preset.name;
    }
  }
}

TEST(HfConfig, WeightsOfOtherTypesAreNotWritten) {
  const ModelSpec model = find_preset("gpt2-124m").spec;
  EXPECT_EQ(message_of<InternalError>([&] { print_hf_config(model, DType::kF16); }),
            "no weights of dtype f16");
}

TEST(HfConfig, PrintsWhatTransformersNeeds) {
  const std::string text = print_hf_config(find_preset("qwen2.5-0.5b").spec, DType::kBF16);
  EXPECT_THAT(text, HasSubstr("\"architectures\": [\n    \"Qwen2ForCausalLM\"\n  ],\n"
                              "  \"model_type\": \"qwen2\",\n  \"hidden_size\": 896,\n"));
  EXPECT_THAT(text, HasSubstr("\"torch_dtype\": \"bfloat16\""));
}

TEST(HfConfig, HasTheDefaultsOfTransformers) {
  const HfConfig llama = parse(
      R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 9,
          "num_attention_heads": 4, "intermediate_size": 8, "head_dim": null})");
  EXPECT_EQ(llama.model.kv_heads, 4);
  EXPECT_EQ(llama.model.head_size, 16);
  EXPECT_EQ(llama.model.norm_epsilon, 1e-6);
  EXPECT_EQ(llama.model.rope_theta, 10000.0);
  EXPECT_FALSE(llama.model.tied_embeddings);
  const HfConfig gpt2 = parse(
      R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "vocab_size": 9, "n_head": 2,
          "n_inner": null})");
  EXPECT_EQ(gpt2.model.ffn, 32);
  EXPECT_TRUE(gpt2.model.tied_embeddings);
}

constexpr const char* kMistral = R"({
  "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})";

// The default of a missing key is 4096, and null is no window.
TEST(HfConfig, ReadsWindowsOfMistral) {
  const ModelSpec mistral = find_preset("mistral-7b").spec;
  EXPECT_EQ(parse(kMistral).model, mistral);
  EXPECT_EQ(parse(replaced(kMistral, " \"sliding_window\": 4096,", "")).model, mistral);
  ModelSpec whole = mistral;
  whole.layers = 32;
  whole.sliding_window = 0;
  EXPECT_EQ(parse(replaced(kMistral, "\"sliding_window\": 4096", "\"sliding_window\": null")).model,
            whole);
  EXPECT_THAT(print_hf_config(mistral, DType::kBF16), HasSubstr("\"sliding_window\": 4096"));
  const std::string ministral = print_hf_config(find_preset("ministral-8b").spec, DType::kBF16);
  EXPECT_THAT(ministral, HasSubstr("\"sliding_window\": 32768"));
  EXPECT_THAT(ministral, HasSubstr("\"layer_types\": [\n    \"full_attention\",\n    "
                                   "\"sliding_attention\""));
}

constexpr const char* kPhi3 = R"({
  "_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"],
  "attention_dropout": 0.0, "attention_bias": false, "bos_token_id": 1, "embd_pdrop": 0.0,
  "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
  "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
  "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0,
  "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0, "sliding_window": 2047,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.40.2",
  "use_cache": true, "vocab_size": 32064})";

// Without a key, Phi-3 has no window.
TEST(HfConfig, ReadsPhi3) {
  const ModelSpec phi = find_preset("phi-3-mini").spec;
  EXPECT_EQ(parse(kPhi3).model, phi);
  EXPECT_THAT(parse(kPhi3).ignored, testing::IsEmpty());
  const std::string printed = print_hf_config(phi, DType::kBF16);
  EXPECT_EQ(parse(printed).model, phi);
  EXPECT_THAT(printed, HasSubstr("\"sliding_window\": 2047"));
  EXPECT_THAT(printed, HasSubstr("\"pad_token_id\": null"));
  ModelSpec whole = phi;
  whole.layers = 32;
  whole.sliding_window = 0;
  EXPECT_EQ(parse(replaced(kPhi3, " \"sliding_window\": 2047,", "")).model, whole);
  EXPECT_EQ(parse(print_hf_config(whole, DType::kF32)).model, whole);
  EXPECT_EQ(parse(print_hf_config(find_preset("phi-4").spec, DType::kF32)).model,
            find_preset("phi-4").spec);
}

/// Published files of small heads: six of eight elements are rotated.
const std::string kPhi3Long = R"({
  "architectures": ["Phi3ForCausalLM"], "hidden_act": "silu", "hidden_size": 32,
  "intermediate_size": 48, "max_position_embeddings": 131072, "model_type": "phi3",
  "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
  "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
  "rope_scaling": {"long_factor": [1, 2.5, 64.76000213623047], "short_factor": [1.1, 1.0, 1.5],
                   "type": "longrope"},
  "rope_theta": 10000.0, "sliding_window": 262144, "vocab_size": 64})";

TEST(HfConfig, ReadsLongropeAndPartialRotationOfPhi3) {
  const ModelSpec phi = parse(kPhi3Long).model;
  EXPECT_EQ(phi.partial_rotary_factor, 0.75);
  EXPECT_EQ(phi.rotated_size(), 6);
  EXPECT_EQ(phi.rope_scaling, (RopeScaling{.type = RopeType::kLongrope,
                                           .factor = 32,
                                           .original_max_position_embeddings = 4096,
                                           .short_factor = "1.1, 1, 1.5",
                                           .long_factor = "1, 2.5, 64.76000213623047"}));
  const std::string printed = print_hf_config(phi, DType::kBF16);
  EXPECT_EQ(parse(printed).model, phi);
  EXPECT_THAT(printed, testing::AllOf(HasSubstr("\"partial_rotary_factor\": 0.75"),
                                      HasSubstr("\"original_max_position_embeddings\": 4096"),
                                      testing::Not(HasSubstr("\"factor\""))));
  for (const char* const preset : {"phi-3-mini-128k", "phi-4-mini"}) {
    const ModelSpec& spec = find_preset(preset).spec;
    EXPECT_EQ(parse(print_hf_config(spec, DType::kBF16)).model, spec) << preset;
  }
  ModelSpec other = phi;  // a factor that does not follow from the positions
  other.rope_scaling.factor = 8;
  other.rope_scaling.attention_factor = 1.25;
  EXPECT_EQ(parse(print_hf_config(other, DType::kF32)).model, other);
  EXPECT_EQ(parse(replaced(kPhi3Long, "\"longrope\"", "\"su\"")).model, phi);
}

// As transformers 5 writes them.
TEST(HfConfig, ReadsRopeParametersOfPhi3) {
  std::string text = replaced(kPhi3Long, "\"rope_scaling\"", "\"rope_parameters\"");
  text = replaced(
      text, "\"original_max_position_embeddings\": 4096, \"partial_rotary_factor\": 0.75,", "");
  text = replaced(text, "\"type\": \"longrope\"",
                  "\"rope_type\": \"longrope\", \"rope_theta\": 10000.0, "
                  "\"partial_rotary_factor\": 0.75, "
                  "\"original_max_position_embeddings\": 4096");
  EXPECT_EQ(parse(text).model, parse(kPhi3Long).model);
}

TEST(HfConfig, RefusesLongropeThatDoesNotFit) {
  EXPECT_THAT(fault_of(replaced(kPhi3Long, "1.1, 1.0, 1.5", "1.1, 1.0")),
              HasSubstr("model.rope_short_factor = \"1.1, 1\": must list 3 positive numbers, one "
                        "for each rotated pair"));
  EXPECT_THAT(fault_of(replaced(kPhi3Long, "[1.1, 1.0, 1.5]", "1.5")),
              HasSubstr("rope_scaling.short_factor = 1.5: must be a list of numbers"));
  EXPECT_THAT(fault_of(replaced(kPhi3Long, "\"partial_rotary_factor\": 0.75",
                                "\"partial_rotary_factor\": 0.7")),
              HasSubstr("model.partial_rotary_factor = 0.7: rotates 5 of model.head_size = 8 "
                        "elements, which must be pairs; set model.partial_rotary_factor = 0.75"));
  EXPECT_THAT(fault_of(with(kTinyLlama, "\"partial_rotary_factor\": 0.75")),
              HasSubstr("partial_rotary_factor = 0.75: braid rotates whole heads only"));
}

// As published, but for keys about tokens.
constexpr const char* kGemma3 = R"({
  "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attn_logit_softcapping": null, "cache_implementation": "hybrid",
  "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
  "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912,
  "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
  "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0,
  "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
  "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
  "use_cache": true, "vocab_size": 262144})";

TEST(HfConfig, ReadsGemma3) {
  EXPECT_EQ(parse(kGemma3).model, find_preset("gemma-3-1b").spec);
  EXPECT_THAT(parse(kGemma3).ignored, ElementsAre("cache_implementation = \"hybrid\""));
  for (const char* const size : {"270m", "1b", "4b", "12b", "27b"}) {
    const ModelSpec& spec = find_preset(fmt::format("gemma-3-{}", size)).spec;
    EXPECT_EQ(parse(print_hf_config(spec, DType::kBF16)).model, spec) << size;
  }
  EXPECT_THAT(print_hf_config(find_preset("gemma-3-4b").spec, DType::kBF16),
              testing::AllOf(HasSubstr("\"sliding_window_pattern\": 6"),
                             HasSubstr("\"rope_local_base_freq\": 10000.0"),
                             HasSubstr("\"hidden_activation\": \"gelu_pytorch_tanh\""),
                             testing::Not(HasSubstr("hidden_act\""))));
  ModelSpec whole = find_preset("gemma-3-1b").spec;  // without windows
  whole.layers = 26;
  whole.sliding_window = 0;
  whole.rope_local_base_freq = 0;
  EXPECT_EQ(parse(print_hf_config(whole, DType::kF32)).model, whole);
}

// As transformers 5 writes them: bases in two objects, and kinds of layers.
TEST(HfConfig, ReadsRopeParametersOfGemma3) {
  std::string text = replaced(kGemma3, "\"rope_local_base_freq\": 10000,\n", "");
  text = replaced(text, "\"rope_scaling\": null, \"rope_theta\": 1000000",
                  R"("rope_parameters": {
    "full_attention": {"factor": 8.0, "rope_theta": 500000.0, "rope_type": "linear"},
    "sliding_attention": {"rope_theta": 2000.0, "rope_type": "default"}})");
  ModelSpec expected = find_preset("gemma-3-1b").spec;
  expected.rope_theta = 500000;
  expected.rope_local_base_freq = 2000;
  expected.rope_scaling = {.type = RopeType::kLinear, .factor = 8};
  EXPECT_EQ(parse(text).model, expected);
  EXPECT_THAT(fault_of(replaced(text, "2000.0, \"rope_type\": \"default\"",
                                "2000.0, \"rope_type\": \"linear\", \"factor\": 2.0")),
              HasSubstr("braid scales the frequencies of layers without windows only"));
}

TEST(HfConfig, RefusesWhatGemma3MayHave) {
  EXPECT_THAT(
      fault_of(replaced(kGemma3, "\"final_logit_softcapping\": null",
                        "\"final_logit_softcapping\": 30.0")),
      HasSubstr("final_logit_softcapping = 30.0: braid has no soft caps of scores and logits"));
  EXPECT_THAT(fault_of(with(kGemma3, "\"use_bidirectional_attention\": true")),
              HasSubstr("braid supports only use_bidirectional_attention = false"));
  EXPECT_THAT(fault_of(replaced(kGemma3, "gelu_pytorch_tanh", "gelu")),
              HasSubstr("braid computes gelu_pytorch_tanh only"));
}

// Layers from max_window_layers on, unless layer_types says which.
TEST(HfConfig, ReadsWindowsOfQwen) {
  const std::string text =
      replaced(replaced(kQwen, "\"use_sliding_window\": false", "\"use_sliding_window\": true"),
               "\"num_hidden_layers\": 24", "\"num_hidden_layers\": 3");
  const auto with_first = [&](const char* first) {
    return replaced(text, "\"max_window_layers\": 24",
                    fmt::format("\"max_window_layers\": {}", first));
  };
  EXPECT_EQ(parse(with_first("2")).model.layers.text(), "attention+mlp*2 sliding+mlp");
  EXPECT_EQ(parse(with_first("0")).model.layers.text(), "sliding+mlp*3");
  EXPECT_EQ(parse(with_first("2")).model.sliding_window, 32768);
  EXPECT_EQ(parse(with_first("3")).model.layers.text(), "attention+mlp*3");
  EXPECT_EQ(parse(with_first("3")).model.sliding_window, 0);
  const ModelSpec typed =
      parse(with(with_first("3"), R"("layer_types": ["sliding_attention", "full_attention",
                                                      "sliding_attention"])"))
          .model;
  EXPECT_EQ(typed.layers.text(), "sliding+mlp attention+mlp sliding+mlp");
  EXPECT_EQ(parse(print_hf_config(typed, DType::kF32)).model, typed);
}

TEST(HfConfig, RefusesOtherModels) {
  EXPECT_EQ(
      fault_of(replaced(kTinyLlama, "\"llama\"", "\"mamba\"")),
      "'m/config.json': model_type = \"mamba\": only llama, mistral, ministral, qwen2, qwen3, "
      "phi3, gemma3_text, qwen2_moe, qwen3_moe, mixtral, olmoe, deepseek_v2, deepseek_v3, mamba2, "
      "nemotron_h, "
      "gpt2 "
      "can be imported");
  EXPECT_THAT(fault_of("{}"), HasSubstr("model_type = null"));
  EXPECT_EQ(fault_of(replaced(kGpt2, "GPT2LMHeadModel", "GPT2DoubleHeadsModel")),
            "'m/config.json': architectures = [\"GPT2DoubleHeadsModel\"]: braid imports only "
            "[\"GPT2LMHeadModel\"] of model_type \"gpt2\"");
}

TEST(HfConfig, RefusesWhatBraidDoesNotCompute) {
  EXPECT_THAT(fault_of(replaced(kTinyLlama, "silu", "gelu")),
              HasSubstr("hidden_act = \"gelu\": braid computes silu only"));
  EXPECT_THAT(fault_of(replaced(kGpt2, "gelu_new", "relu")),
              HasSubstr("activation_function = \"relu\""));
  EXPECT_THAT(fault_of(replaced(kQwen3Moe, "\"use_sliding_window\": false",
                                "\"use_sliding_window\": true")),
              HasSubstr("braid supports only use_sliding_window = false"));
  EXPECT_THAT(fault_of(replaced(kMixtral, "\"sliding_window\": null", "\"sliding_window\": 4096")),
              HasSubstr("sliding_window = 4096: braid has no windows in layers of this class"));
  EXPECT_THAT(fault_of(with(kQwen, R"("layer_types": ["sliding_attention"])")),
              HasSubstr("layer_types = [\"sliding_attention\"]: must be a list of 24 layers"));
  EXPECT_THAT(fault_of(with(kQwen, R"("layer_types": "full_attention")")),
              HasSubstr("layer_types = \"full_attention\": must be a list of 24 layers"));
  EXPECT_THAT(
      fault_of(with(replaced(kQwen, "\"num_hidden_layers\": 24", "\"num_hidden_layers\": 1"),
                    R"("layer_types": ["sliding_attention"])")),
      HasSubstr("braid computes \"full_attention\", and with a sliding_window"));
  EXPECT_EQ(parse(with(kTinyLlama, R"("partial_rotary_factor": 1.0)")).model.head_size, 64);
  EXPECT_THAT(fault_of(with(kTinyLlama, R"("partial_rotary_factor": 0.5)")),
              HasSubstr("partial_rotary_factor = 0.5: braid rotates whole heads only"));
  EXPECT_THAT(fault_of(with(kTinyLlama, R"("quantization_config": {"bits": 4})")),
              HasSubstr("quantized weights cannot be imported"));
  for (const char* const key : {"attention_bias", "mlp_bias"}) {
    EXPECT_THAT(fault_of(with(kTinyLlama, fmt::format("\"{}\": true", key))),
                HasSubstr(fmt::format("supports only {} = false", key)));
  }
  EXPECT_THAT(fault_of(with(kGpt2, R"("scale_attn_weights": false)")),
              HasSubstr("supports only scale_attn_weights = true"));
  for (const char* const key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    EXPECT_THAT(fault_of(with(kGpt2, fmt::format("\"{}\": true", key))), HasSubstr(key));
  }
}

TEST(HfConfig, TakesRopeParametersOfTransformers5) {
  const std::string text =
      with(kTinyLlama, R"("rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"})");
  EXPECT_EQ(parse(text).model.rope_theta, 500000.0);
  EXPECT_THAT(fault_of(with(kTinyLlama, R"("rope_parameters": {"rope_theta": "x"})")),
              HasSubstr("rope_parameters.rope_theta = \"x\""));
}

/// kTinyLlama with that scaling, under either name of the object.
std::string scaled(const std::string& rope) {
  return replaced(kTinyLlama, "\"rope_scaling\": null", "\"rope_scaling\": " + rope);
}
std::string scaled_as_in_5(const std::string& rope) {
  return with(kTinyLlama, "\"rope_parameters\": " + rope);
}

TEST(HfConfig, ReadsTheScalingOfPublishedModels) {
  const std::string llama32 =
      R"({"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
          "original_max_position_embeddings": 8192, "rope_type": "llama3"})";
  for (const std::string& text : {scaled(llama32), scaled_as_in_5(llama32)}) {
    EXPECT_EQ(parse(text).model.rope_scaling, find_preset("llama-1b").spec.rope_scaling);
  }
  EXPECT_EQ(parse(scaled(R"({"type": "linear", "factor": 2})")).model.rope_scaling,
            (RopeScaling{.type = RopeType::kLinear, .factor = 2}));
  // As in Qwen's model cards, and in gpt-oss.
  EXPECT_EQ(parse(scaled(R"({"rope_type": "yarn", "factor": 4.0,
                             "original_max_position_embeddings": 32768})"))
                .model.rope_scaling,
            (RopeScaling{
                .type = RopeType::kYarn, .factor = 4, .original_max_position_embeddings = 32768}));
  EXPECT_EQ(parse(scaled(R"({"beta_fast": 30.0, "beta_slow": 2.0, "factor": 32.0, "truncate": false,
                             "attention_factor": 1.5, "original_max_position_embeddings": 4096,
                             "rope_type": "yarn"})"))
                .model.rope_scaling,
            (RopeScaling{.type = RopeType::kYarn,
                         .factor = 32,
                         .original_max_position_embeddings = 4096,
                         .beta_fast = 30,
                         .beta_slow = 2,
                         .truncate = false,
                         .attention_factor = 1.5}));
}

TEST(HfConfig, MissingParametersOfAScalingAreThoseOfTransformers) {
  const auto positions = [](const std::string& rope) {
    return parse(scaled(rope)).model.rope_scaling.original_max_position_embeddings;
  };
  const int64_t all = parse(kTinyLlama).model.max_positions;
  EXPECT_EQ(positions(R"({"rope_type": "yarn", "factor": 4.0})"), all);
  EXPECT_EQ(parse(scaled(R"({"rope_type": "yarn", "factor": null,
                             "original_max_position_embeddings": 16})"))
                .model.rope_scaling.factor,
            static_cast<double>(all) / 16);
}

TEST(HfConfig, PrintsScalingsThatItReads) {
  ModelSpec model = parse(kTinyLlama).model;
  const RopeScaling scalings[] = {{.type = RopeType::kLinear, .factor = 3},
                                  {.type = RopeType::kLlama3,
                                   .factor = 8,
                                   .original_max_position_embeddings = 100,
                                   .low_freq_factor = 2,
                                   .high_freq_factor = 3},
                                  {.type = RopeType::kYarn,
                                   .factor = 8,
                                   .original_max_position_embeddings = 64,
                                   .beta_fast = 20,
                                   .beta_slow = 3,
                                   .truncate = false,
                                   .mscale = 0.5,
                                   .mscale_all_dim = 0.7},
                                  {.type = RopeType::kYarn,
                                   .factor = 8,
                                   .original_max_position_embeddings = 64,
                                   .attention_factor = 1.25}};
  for (const RopeScaling& scaling : scalings) {
    model.rope_scaling = scaling;
    const std::string text = print_hf_config(model, DType::kF32);
    EXPECT_EQ(parse(text).model, model) << text;
    // The name that older code reads.
    EXPECT_THAT(text, HasSubstr(fmt::format("\"type\": \"{}\"", rope_type_name(scaling.type))));
  }
}

TEST(HfConfig, RefusesScalingsThatItDoesNotKnow) {
  EXPECT_THAT(fault_of(scaled("3")), HasSubstr("rope_scaling = 3: must be an object"));
  EXPECT_THAT(fault_of(scaled_as_in_5("3")), HasSubstr("rope_parameters = 3: must be an object"));
  EXPECT_THAT(fault_of(scaled(R"({"type": "dynamic", "factor": 2})")),
              HasSubstr("braid computes rotary embeddings of rope_type default, linear, llama3, "
                        "yarn, longrope only"));
  EXPECT_THAT(fault_of(scaled_as_in_5(R"({"rope_type": "longrope"})")),
              HasSubstr("rope_parameters"));
  EXPECT_THAT(fault_of(scaled(R"({"type": "linear"})")), HasSubstr("factor is missing"));
  EXPECT_THAT(fault_of(scaled(R"({"type": "linear", "factor": 2, "beta_fast": 3})")),
              HasSubstr("rope_type \"linear\" has no beta_fast that braid knows"));
  EXPECT_THAT(fault_of(scaled(R"({"type": "yarn", "factor": "x"})")),
              HasSubstr("rope_scaling.factor = \"x\": must be a number"));
  EXPECT_THAT(fault_of(scaled(R"({"type": "yarn", "factor": 2, "truncate": 1})")),
              HasSubstr("rope_scaling.truncate = 1: must be true or false"));
  EXPECT_THAT(fault_of(scaled(R"({"type": "yarn", "factor": 0.5})")),
              HasSubstr("model.rope_factor = 0.5: must be at least 1"));
  EXPECT_THAT(fault_of(scaled_as_in_5(R"({"rope_type": "default", "partial_rotary_factor": 0.5})")),
              HasSubstr("rope_type \"default\" has no partial_rotary_factor that braid knows"));
}

TEST(HfConfig, RefusesValuesThatCannotBe) {
  for (const char* const value : {"0", "-1", "1.5", "\"22\"", "null", "100000", "[]"}) {
    EXPECT_THAT(
        fault_of(replaced(kTinyLlama, "\"num_hidden_layers\": 22",
                          fmt::format("\"num_hidden_layers\": {}", value))),
        HasSubstr(fmt::format("num_hidden_layers = {}: must be an integer from 1 to 4096", value)));
  }
  EXPECT_THAT(fault_of(replaced(kTinyLlama, "1e-05", "2")),
              HasSubstr("rms_norm_eps = 2: must be a number from 0 to 1"));
  EXPECT_THAT(fault_of(replaced(kTinyLlama, "1e-05", "\"small\"")), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(fault_of(replaced(kTinyLlama, "\"tie_word_embeddings\": false",
                                "\"tie_word_embeddings\": 0")),
              HasSubstr("tie_word_embeddings = 0: must be true or false"));
  EXPECT_THAT(
      fault_of(replaced(kTinyLlama, "\"num_key_value_heads\": 4", "\"num_key_value_heads\": 5")),
      HasSubstr("'m/config.json' describes no model: model.kv_heads = 5: must divide"));
  EXPECT_THAT(fault_of(replaced(kGpt2, "\"n_head\": 12", "\"n_head\": 7")),
              HasSubstr("describes no model: model.head_size"));
  EXPECT_THAT(fault_of(replaced(kGpt2, "\"n_head\": 12", "\"n_head\": 1000")),
              HasSubstr("describes no model"));
}

TEST(HfConfig, RefusesWhatIsNoConfig) {
  EXPECT_THAT(fault_of("{"), StartsWith("'m/config.json' is not JSON at byte 2: "));
  EXPECT_THAT(fault_of(fmt::format("{{\"model_type\":{}{}}}", std::string(100'000, '['),
                                   std::string(100'000, ']'))),
              HasSubstr("deeper than 64"));
  EXPECT_EQ(fault_of("[]"), "'m/config.json' is not a JSON object");
  EXPECT_EQ(fault_of("{\"a\": 1e999}"),
            "'m/config.json' holds a number that is out of range at byte 11");
  EXPECT_LT(fault_of(fmt::format("{{\"model_type\": \"{}\"}}", std::string(100000, 'n'))).size(),
            300u);
}

TEST(HfConfig, AnyFlippedByteIsReadOrRefused) {
  std::mt19937 random(1);
  for (const std::string good : {kTinyLlama, kQwen, kGpt2}) {
    for (int repeat = 0; repeat < 2000; ++repeat) {
      std::string bad = good;
      bad[random() % bad.size()] = static_cast<char>(random());
      try {
        EXPECT_GE(parse(bad).model.layers.size(), 1);
      } catch (const DataError&) {
      }
    }
  }
}

}  // namespace
}  // namespace braid
