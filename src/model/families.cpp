#include "model/families.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

ModelSpec gpt2(int64_t layers, int64_t width, int64_t heads) {
  return {.style = kGpt2Style,
          .layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = heads,
          .head_size = width / heads,
          .ffn = 4 * width,
          .vocabulary = 50257,
          .max_positions = 1024,
          .tied_embeddings = true,
          .qkv_bias = true};
}

struct LlamaShape {
  int64_t layers, width, heads, kv_heads, head_size, ffn;
  bool tied;
};

ModelSpec llama(const LlamaShape& shape) {
  return {.layers = shape.layers,
          .width = shape.width,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_size = shape.head_size,
          .ffn = shape.ffn,
          .vocabulary = 128256,
          .max_positions = 131072,
          .tied_embeddings = shape.tied,
          .rope_theta = 500000.0};
}

/// Llama 3.1 and later, whose frequencies are scaled.
ModelSpec llama3(const LlamaShape& shape, double factor) {
  ModelSpec spec = llama(shape);
  spec.rope_scaling = {.type = RopeType::kLlama3,
                       .factor = factor,
                       .original_max_position_embeddings = 8192,
                       .low_freq_factor = 1.0,
                       .high_freq_factor = 4.0};
  return spec;
}

/// With a window in all layers (version 0.1).
ModelSpec mistral_7b() {
  ModelSpec spec = llama({32, 4096, 32, 8, 128, 14336, false});
  spec.layers = LayerPattern(32, {.mixer = &kSlidingBlock});
  spec.sliding_window = 4096;
  spec.vocabulary = 32000;
  spec.max_positions = 32768;
  spec.rope_theta = 10000.0;
  return spec;
}

/// A layer without a window in front of each three with one.
ModelSpec ministral_8b() {
  ModelSpec spec = llama({36, 4096, 32, 8, 128, 12288, false});
  spec.layers = LayerPattern::parse("(attention+mlp sliding+mlp*3)*9");
  spec.sliding_window = 32768;
  spec.vocabulary = 131072;
  spec.max_positions = 131072;
  spec.rope_theta = 100000000.0;
  return spec;
}

/// `window` is 0 for none.
ModelSpec phi(const LlamaShape& shape, int64_t vocabulary, int64_t max_positions, int64_t window) {
  ModelSpec spec = llama(shape);
  spec.style = kPhi3Style;
  if (window > 0) {
    spec.layers = LayerPattern(shape.layers, {.mixer = &kSlidingBlock});
    spec.sliding_window = window;
  }
  spec.vocabulary = vocabulary;
  spec.max_positions = max_positions;
  spec.rope_theta = 10000.0;
  return spec;
}

ModelSpec phi_4() {
  ModelSpec spec = phi({40, 5120, 40, 10, 128, 17920, false}, 100352, 16384, 0);
  spec.rope_theta = 250000.0;
  return spec;
}

/// The phi model with a context of 131,072 tokens, made from one of 4,096.
ModelSpec longrope(ModelSpec spec, std::string short_factor, std::string long_factor) {
  spec.max_positions = 131072;
  spec.rope_scaling = {.type = RopeType::kLongrope,
                       .factor = 32,
                       .original_max_position_embeddings = 4096,
                       .short_factor = std::move(short_factor),
                       .long_factor = std::move(long_factor)};
  return spec;
}

constexpr int64_t kPhiWindow = 262144;  // longer than their contexts

ModelSpec phi_3_mini_128k() {
  return longrope(
      phi({32, 3072, 32, 32, 96, 8192, false}, 32064, 0, kPhiWindow),
      "1.1, 1.1, 1.1, 1.3000000000000003, 1.3500000000000003, 1.3500000000000003, "
      "1.4000000000000004, 1.5500000000000005, 2.000000000000001, 2.000000000000001, "
      "2.000000000000001, 2.000000000000001, 2.000000000000001, 2.000000000000001, "
      "2.000000000000001, 2.000000000000001, 2.000000000000001, 2.000000000000001, "
      "2.000000000000001, 2.000000000000001, 2.000000000000001, 2.000000000000001, "
      "2.000000000000001, 2.000000000000001, 2.000000000000001, 2.0500000000000007, "
      "2.0500000000000007, 2.0500000000000007, 2.0500000000000007, 2.0500000000000007, "
      "2.0500000000000007, 2.1000000000000005, 2.1000000000000005, 2.1500000000000004, 2.25, "
      "2.25, 2.25, 2.25, 2.25, 2.3999999999999995, 2.4499999999999993, 2.499999999999999, "
      "2.6999999999999984, 2.6999999999999984, 2.7499999999999982, 2.799999999999998, "
      "2.8999999999999977, 3.049999999999997",
      "1.0700000524520874, 1.1200000047683716, 1.149999976158142, 1.4199999570846558, "
      "1.5699999332427979, 1.7999999523162842, 2.129999876022339, 2.129999876022339, "
      "3.009999990463257, 5.910000324249268, 6.950000286102295, 9.070000648498535, "
      "9.930000305175781, 10.710000038146973, 11.130000114440918, 14.609999656677246, "
      "15.409998893737793, 19.809999465942383, 37.279998779296875, 38.279998779296875, "
      "38.599998474121094, 40.12000274658203, 46.20000457763672, 50.940006256103516, "
      "53.66000747680664, 54.9373893737793, 56.89738845825195, 57.28738784790039, "
      "59.98738479614258, 60.86738586425781, 60.887386322021484, 61.71739196777344, "
      "62.91739273071289, 62.957393646240234, 63.41739273071289, 63.8173942565918, "
      "63.83739471435547, 63.897396087646484, 63.93739700317383, 64.06739807128906, "
      "64.11434936523438, 64.12435150146484, 64.15435028076172, 64.19435119628906, "
      "64.24435424804688, 64.57435607910156, 64.69000244140625, 64.76000213623047");
}

ModelSpec phi_4_mini() {
  std::string ones = "1";
  for (int pair = 1; pair < 48; ++pair) {
    ones += ", 1";
  }
  ModelSpec spec = longrope(
      phi({32, 3072, 24, 8, 128, 8192, true}, 200064, 0, kPhiWindow), ones,
      "1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, "
      "2.187582649, 2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, "
      "4.279200023, 4.785517845, 5.351743533, 5.984965424, 6.693110555, 7.485043894, "
      "8.370679318, 9.36110372, 10.4687158, 11.70738129, 13.09260651, 14.64173252, "
      "16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03, "
      "32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97, 33.28, 33.49, "
      "33.5, 44.16, 47.77");
  spec.partial_rotary_factor = 0.75;
  return spec;
}

ModelSpec qwen(const LlamaShape& shape, int64_t vocabulary) {
  ModelSpec spec = llama(shape);
  spec.vocabulary = vocabulary;
  spec.max_positions = 32768;
  spec.qkv_bias = true;
  spec.rope_theta = 1000000.0;
  spec.norm_epsilon = 1e-6;
  return spec;
}

ModelSpec qwen3(const LlamaShape& shape) {
  ModelSpec spec = qwen(shape, 151936);
  spec.style = kQwen3Style;
  spec.max_positions = 40960;
  spec.qkv_bias = false;
  return spec;
}

struct GemmaShape {
  std::string_view pattern;
  LlamaShape sizes;  ///< those of layers are the pattern's
  int64_t window, vocabulary, query_scalar;
};

/// Five layers with windows and a base of 10,000 in front of each without, whose base is 1,000,000,
/// with a scaling where contexts have more than 32,768 tokens.
ModelSpec gemma3(const GemmaShape& shape, int64_t max_positions) {
  ModelSpec spec = llama(shape.sizes);
  spec.style = kGemma3Style;
  spec.layers = LayerPattern::parse(shape.pattern);
  spec.sliding_window = shape.window;
  spec.vocabulary = shape.vocabulary;
  spec.max_positions = max_positions;
  spec.norm_offset = 1;
  spec.post_norms = true;
  spec.scale_embedding = true;
  spec.query_pre_attn_scalar = shape.query_scalar;
  spec.rope_theta = 1000000.0;
  spec.rope_local_base_freq = 10000.0;
  if (max_positions > 32768) {
    spec.rope_scaling = {.type = RopeType::kLinear, .factor = 8};
  }
  spec.norm_epsilon = 1e-6;
  return spec;
}

constexpr GemmaShape kGemma3Of270M{
    "(sliding+mlp*5 attention+mlp)*3", {18, 640, 4, 1, 256, 2048, true}, 512, 262144, 256};
constexpr GemmaShape kGemma3Of1B{"(sliding+mlp*5 attention+mlp)*4 sliding+mlp*2",
                                 {26, 1152, 4, 1, 256, 6912, true},
                                 512,
                                 262144,
                                 256};
constexpr GemmaShape kGemma3Of4B{"(sliding+mlp*5 attention+mlp)*5 sliding+mlp*4",
                                 {34, 2560, 8, 4, 256, 10240, true},
                                 1024,
                                 262208,
                                 256};
constexpr GemmaShape kGemma3Of12B{
    "(sliding+mlp*5 attention+mlp)*8", {48, 3840, 16, 8, 256, 15360, true}, 1024, 262208, 256};
constexpr GemmaShape kGemma3Of27B{"(sliding+mlp*5 attention+mlp)*10 sliding+mlp*2",
                                  {62, 5376, 32, 16, 128, 21504, true},
                                  1024,
                                  262208,
                                  168};

struct ExpertShape {
  int64_t experts, per_token, ffn;
};

/// The same model with experts in place of all MLPs.
ModelSpec with_experts(ModelSpec spec, const ExpertShape& shape) {
  spec.layers = LayerPattern(spec.layers.size(), {.feed_forward = &kMoeBlock});
  spec.ffn = 0;
  spec.experts = shape.experts;
  spec.experts_per_token = shape.per_token;
  spec.expert_ffn = shape.ffn;
  return spec;
}

ModelSpec mixtral(const LlamaShape& shape, const ExpertShape& experts, int64_t max_positions) {
  ModelSpec spec = with_experts(llama(shape), experts);
  spec.vocabulary = 32000;
  spec.max_positions = max_positions;
  spec.rope_theta = 1000000.0;
  return spec;
}

ModelSpec qwen2_moe(const LlamaShape& shape, const ExpertShape& experts, int64_t shared_ffn,
                    int64_t max_positions) {
  ModelSpec spec = with_experts(qwen(shape, 151936), experts);
  spec.shared_ffn = shared_ffn;
  spec.shared_gate = true;
  spec.router.normalize = false;
  spec.max_positions = max_positions;
  return spec;
}

ModelSpec olmoe() {
  ModelSpec spec = with_experts(llama({16, 2048, 16, 16, 128, 0, false}), {64, 8, 1024});
  spec.style = kOlmoeStyle;
  spec.vocabulary = 50304;
  spec.max_positions = 4096;
  spec.rope_theta = 10000.0;
  spec.router.normalize = false;
  return spec;
}

struct LatentShape {
  int64_t layers, dense_layers, width, heads, q_rank, ffn, vocabulary;
  double mscale;  ///< of their scaled frequencies, which are those of the published models
};

/// DeepSeek's models have latents and heads of equal sizes, experts in all but the first layers,
/// and for all tokens as many as `shared` experts in one.
ModelSpec deepseek(const LatentShape& shape, const ExpertShape& experts, int64_t shared,
                   const RouterSpec& router) {
  std::vector<LayerSpec> layers(static_cast<size_t>(shape.layers),
                                {.mixer = &kMlaBlock, .feed_forward = &kMoeBlock});
  std::fill_n(layers.begin(), shape.dense_layers, LayerSpec{.mixer = &kMlaBlock});
  return {.layers = LayerPattern(std::move(layers)),
          .width = shape.width,
          .heads = shape.heads,
          .q_lora_rank = shape.q_rank,
          .kv_lora_rank = 512,
          .qk_nope_head_dim = 128,
          .qk_rope_head_dim = 64,
          .v_head_dim = 128,
          .ffn = shape.ffn,
          .experts = experts.experts,
          .experts_per_token = experts.per_token,
          .expert_ffn = experts.ffn,
          .shared_ffn = shared * experts.ffn,
          .router = router,
          .vocabulary = shape.vocabulary,
          .max_positions = 163840,
          .rope_scaling = {.type = RopeType::kYarn,
                           .factor = 40,
                           .original_max_position_embeddings = 4096,
                           .mscale = shape.mscale,
                           .mscale_all_dim = shape.mscale},
          .norm_epsilon = 1e-6};
}

struct StateShape {
  int64_t heads, groups;  ///< of 64 features, with 128 elements of a state each
};

ModelSpec with_states(ModelSpec spec, const StateShape& shape) {
  spec.mamba_num_heads = shape.heads;
  spec.mamba_head_dim = 64;
  spec.ssm_state_size = 128;
  spec.mamba_n_groups = shape.groups;
  spec.conv_kernel = 4;
  return spec;
}

ModelSpec mamba2(int64_t layers, int64_t width) {
  ModelSpec spec =
      with_states({.style = kMamba2Style,
                   .layers = {layers, {.mixer = &kMambaBlock, .feed_forward = nullptr}},
                   .width = width,
                   .vocabulary = 50288,
                   .tied_embeddings = true},
                  {.heads = 2 * width / 64, .groups = 1});
  spec.mamba_chunk_size = 256;
  return spec;
}

/// Both sizes have the same layers, 24 of them with states and 4 with attention.
ModelSpec nemotron_h(int64_t width, int64_t ffn, int64_t state_heads) {
  constexpr std::string_view kPattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";
  ModelSpec spec = with_states({.style = kNemotronHStyle,
                                .layers = LayerPattern::parse(kPattern),
                                .width = width,
                                .heads = 32,
                                .kv_heads = 8,
                                .head_size = 128,
                                .ffn = ffn,
                                .vocabulary = 131072,
                                .max_positions = 8192},
                               {.heads = state_heads, .groups = 8});
  spec.mamba_chunk_size = 128;
  spec.mamba_dt_min = 0.001;  // as its class in transformers computes, from time_step_min
  return spec;
}

/// Layers with states, attention and experts in turn, the latter without gates.
ModelSpec nemotron_3_nano() {
  constexpr std::string_view kPattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
  ModelSpec spec = with_states({.style = kNemotronHStyle,
                                .layers = LayerPattern::parse(kPattern),
                                .width = 2688,
                                .heads = 32,
                                .kv_heads = 2,
                                .head_size = 128,
                                .experts = 128,
                                .experts_per_token = 6,
                                .expert_ffn = 1856,
                                .shared_ffn = 3712,
                                .router = {.sigmoid = true, .scale = 2.5, .bias = true},
                                .vocabulary = 131072,
                                .max_positions = 262144},
                               {.heads = 64, .groups = 8});
  spec.mamba_chunk_size = 128;
  spec.mamba_dt_min = 0.001;
  return spec;
}

constexpr RouterSpec kDeepseekLiteRouter{.normalize = false};
constexpr RouterSpec kDeepseekV2Router{
    .normalize = false, .scale = 16.0, .groups = 8, .kept_groups = 3};
constexpr RouterSpec kDeepseekV3Router{
    .sigmoid = true, .scale = 2.5, .bias = true, .groups = 8, .kept_groups = 4};

constexpr std::string_view kGpt2Paper =
    "Radford et al., Language models are unsupervised multitask learners, 2019";
constexpr std::string_view kLlama32 = "Meta, Llama 3.2 model card, 2024";
constexpr std::string_view kLlama31 =
    "Grattafiori et al., The Llama 3 herd of models, 2024, table 3";
constexpr std::string_view kQwen25 = "Qwen team, Qwen2.5 technical report, 2024, table 1";

constexpr std::string_view kPhi3 =
    "Abdin et al., Phi-3 technical report, 2024, section 2, and its published files";

constexpr std::string_view kGemma3 =
    "Gemma team, Gemma 3 technical report, 2025, section 2, and its published files";

constexpr std::string_view kQwen3 = "Yang et al., Qwen3 technical report, 2025, tables 1 and 2";
constexpr std::string_view kQwen2 = "Yang et al., Qwen2 technical report, 2024, table 1";
constexpr std::string_view kMixtral = "Jiang et al., Mixtral of experts, 2024, table 1";
constexpr std::string_view kDeepseekV2 =
    "DeepSeek-AI, DeepSeek-V2, 2024, section 3.1.2 and appendix B";
constexpr std::string_view kDeepseekV3 =
    "DeepSeek-AI, DeepSeek-V3 technical report, 2024, section 4.2";
constexpr std::string_view kMamba2 =
    "Dao and Gu, Transformers are SSMs, 2024, table 3 and its published code";
constexpr std::string_view kNemotronH =
    "NVIDIA, Nemotron-H: a family of hybrid Mamba-Transformer models, 2025, table 1";
constexpr std::string_view kNemotron3 =
    "NVIDIA, Nemotron 3 Nano: open hybrid Mamba-Transformer mixture-of-experts model, 2025";
constexpr std::string_view kOlmoe =
    "Muennighoff et al., OLMoE: open mixture-of-experts language models, 2024";

const std::vector<ModelPreset>& presets() {
  static const std::vector<ModelPreset> kPresets = {
      {"gpt2-124m", kGpt2Paper, gpt2(12, 768, 12)},
      {"gpt2-355m", kGpt2Paper, gpt2(24, 1024, 16)},
      {"gpt2-774m", kGpt2Paper, gpt2(36, 1280, 20)},
      {"gpt2-1.5b", kGpt2Paper, gpt2(48, 1600, 25)},
      {"llama-1b", kLlama32, llama3({16, 2048, 32, 8, 64, 8192, true}, 32)},
      {"llama-3b", kLlama32, llama3({28, 3072, 24, 8, 128, 8192, true}, 32)},
      {"llama-8b", kLlama31, llama3({32, 4096, 32, 8, 128, 14336, false}, 8)},
      {"llama-70b", kLlama31, llama3({80, 8192, 64, 8, 128, 28672, false}, 8)},
      {"llama-405b", kLlama31, llama3({126, 16384, 128, 8, 128, 53248, false}, 8)},
      {"mistral-7b", "Jiang et al., Mistral 7B, 2023, table 1", mistral_7b()},
      {"ministral-8b", "Mistral AI, Ministral-8B-Instruct-2410 model card, 2024", ministral_8b()},
      {"phi-3-mini", kPhi3, phi({32, 3072, 32, 32, 96, 8192, false}, 32064, 4096, 2047)},
      {"phi-3-mini-128k", kPhi3, phi_3_mini_128k()},
      {"phi-3-medium", kPhi3, phi({40, 5120, 40, 10, 128, 17920, false}, 32064, 4096, 2047)},
      {"phi-4", "Abdin et al., Phi-4 technical report, 2024, section 3", phi_4()},
      {"phi-4-mini", "Microsoft, Phi-4-Mini technical report, 2025, and its published files",
       phi_4_mini()},
      {"gemma-3-270m", kGemma3, gemma3(kGemma3Of270M, 32768)},
      {"gemma-3-1b", kGemma3, gemma3(kGemma3Of1B, 32768)},
      {"gemma-3-4b", kGemma3, gemma3(kGemma3Of4B, 131072)},
      {"gemma-3-12b", kGemma3, gemma3(kGemma3Of12B, 131072)},
      {"gemma-3-27b", kGemma3, gemma3(kGemma3Of27B, 131072)},
      {"qwen2.5-0.5b", kQwen25, qwen({24, 896, 14, 2, 64, 4864, true}, 151936)},
      {"qwen2.5-1.5b", kQwen25, qwen({28, 1536, 12, 2, 128, 8960, true}, 151936)},
      {"qwen2.5-3b", kQwen25, qwen({36, 2048, 16, 2, 128, 11008, true}, 151936)},
      {"qwen2.5-7b", kQwen25, qwen({28, 3584, 28, 4, 128, 18944, false}, 152064)},
      {"qwen2.5-14b", kQwen25, qwen({48, 5120, 40, 8, 128, 13824, false}, 152064)},
      {"qwen2.5-32b", kQwen25, qwen({64, 5120, 40, 8, 128, 27648, false}, 152064)},
      {"qwen3-0.6b", kQwen3, qwen3({28, 1024, 16, 8, 128, 3072, true})},
      {"qwen3-1.7b", kQwen3, qwen3({28, 2048, 16, 8, 128, 6144, true})},
      {"qwen3-4b", kQwen3, qwen3({36, 2560, 32, 8, 128, 9728, true})},
      {"qwen3-8b", kQwen3, qwen3({36, 4096, 32, 8, 128, 12288, false})},
      {"qwen3-14b", kQwen3, qwen3({40, 5120, 40, 8, 128, 17408, false})},
      {"qwen3-32b", kQwen3, qwen3({64, 5120, 64, 8, 128, 25600, false})},
      {"qwen3-30b-a3b", kQwen3,
       with_experts(qwen3({48, 2048, 32, 4, 128, 0, false}), {128, 8, 768})},
      {"qwen3-235b-a22b", kQwen3,
       with_experts(qwen3({94, 4096, 64, 4, 128, 0, false}), {128, 8, 1536})},
      {"qwen1.5-moe-a2.7b", "Qwen team, Qwen1.5-MoE, 2024",
       qwen2_moe({24, 2048, 16, 16, 128, 0, false}, {60, 4, 1408}, 5632, 8192)},
      {"qwen2-57b-a14b", kQwen2,
       qwen2_moe({28, 3584, 28, 4, 128, 0, false}, {64, 8, 2560}, 20480, 131072)},
      {"mixtral-8x7b", kMixtral, mixtral({32, 4096, 32, 8, 128, 0, false}, {8, 2, 14336}, 32768)},
      {"mixtral-8x22b", "Mistral AI, Mixtral 8x22B, 2024",
       mixtral({56, 6144, 48, 8, 128, 0, false}, {8, 2, 16384}, 65536)},
      {"olmoe-1b-7b", kOlmoe, olmoe()},
      {"deepseek-v2-lite", kDeepseekV2,
       deepseek({27, 1, 2048, 16, 0, 10944, 102400, 0.707}, {64, 6, 1408}, 2, kDeepseekLiteRouter)},
      {"deepseek-v2", kDeepseekV2,
       deepseek({60, 1, 5120, 128, 1536, 12288, 102400, 0.707}, {160, 6, 1536}, 2,
                kDeepseekV2Router)},
      {"deepseek-v3", kDeepseekV3,
       deepseek({61, 3, 7168, 128, 1536, 18432, 129280, 1.0}, {256, 8, 2048}, 1,
                kDeepseekV3Router)},
      {"mamba2-130m", kMamba2, mamba2(24, 768)},
      {"mamba2-2.7b", kMamba2, mamba2(64, 2560)},
      {"nemotron-h-4b", kNemotronH, nemotron_h(3072, 12288, 112)},
      {"nemotron-h-8b", kNemotronH, nemotron_h(4096, 21504, 128)},
      {"nemotron-3-nano", kNemotron3, nemotron_3_nano()},
  };
  return kPresets;
}

/// The entry of that name.
template <class Entry>
const Entry& find_named(std::span<const Entry> entries, std::string_view key,
                        std::string_view name) {
  std::vector<std::string_view> names;
  for (const Entry& entry : entries) {
    if (entry.name == name) {
      return entry;
    }
    names.push_back(entry.name);
  }
  throw_config_error("model.{} = \"{}\": not one of {}{}", key, name, join(names, ", "),
                     did_you_mean(name, names));
}

}  // namespace

const ModelFamily& find_family(std::string_view name) {
  return find_named(std::span<const ModelFamily>(kModelFamilies), "family", name);
}

std::string_view family_name(const ModelStyle& style) {
  const auto* const found = std::ranges::find(kModelFamilies, style, &ModelFamily::style);
  check(found != kModelFamilies.end(), "no family of models has this style");
  return found->name;
}

std::span<const ModelPreset> model_presets() {
  return presets();
}

const ModelPreset& find_preset(std::string_view name) {
  return find_named(model_presets(), "preset", name);
}

}  // namespace braid
