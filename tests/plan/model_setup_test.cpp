#include "plan/model_setup.h"
#include "model/families.h"

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/validate.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig small_config() {
  ModelConfig config;
  config.layers = 2;
  config.width = 96;
  config.heads = 6;
  return config;
}

TEST(ResolveModel, TakesThePresetAsItIs) {
  ModelConfig config;
  config.preset = "llama-1b";
  EXPECT_EQ(resolve_model(config, 2048, 0), find_preset("llama-1b").spec);
}

TEST(ChangedKeysOfPreset, AreThoseWithAnotherValue) {
  EXPECT_TRUE(changed_keys_of_preset(small_config()).empty());
  ModelConfig config = small_config();
  config.preset = "llama-1b";
  config.tied_embeddings = find_preset("llama-1b").spec.tied_embeddings;
  EXPECT_THAT(changed_keys_of_preset(config), ElementsAre("layers", "width", "heads"));
  config.preset = "nosuch";
  EXPECT_THROW(changed_keys_of_preset(config), ConfigError);
}

TEST(ResolveModel, GivenKeysOverrideThePreset) {
  ModelConfig config;
  config.preset = "llama-1b";
  config.layers = 3;
  config.rope_theta = 1234.5;
  config.tied_embeddings = false;
  ModelSpec expected = find_preset("llama-1b").spec;
  expected.layers = 3;
  expected.rope_theta = 1234.5;
  expected.tied_embeddings = false;
  EXPECT_EQ(resolve_model(config, 2048, 0), expected);
}

TEST(ResolveModel, DerivesWhatALlamaLeavesOpen) {
  const ModelSpec spec = resolve_model(small_config(), 128, 300);
  EXPECT_EQ(spec.style, kLlamaStyle);
  EXPECT_EQ(spec.kv_heads, 6);
  EXPECT_EQ(spec.head_size, 16);
  EXPECT_EQ(spec.ffn, 256);  // 8/3 of 96, and already a multiple of 64
  EXPECT_EQ(spec.vocabulary, 300);
  EXPECT_FALSE(spec.qkv_bias);
  EXPECT_FALSE(spec.tied_embeddings);
}

TEST(ResolveModel, RoundsTheLlamaFfnUpTo64) {
  ModelConfig config = small_config();
  config.width = 108;  // 8/3 of it is 288
  EXPECT_EQ(resolve_model(config, 128, 300).ffn, 320);
}

TEST(ResolveModel, DerivesWhatAGpt2LeavesOpen) {
  ModelConfig config = small_config();
  config.family = "gpt2";
  const ModelSpec spec = resolve_model(config, 128, 300);
  EXPECT_EQ(spec.style, kGpt2Style);
  EXPECT_EQ(spec.ffn, 4 * 96);
  EXPECT_EQ(spec.max_positions, 128);
  EXPECT_TRUE(spec.qkv_bias);
  EXPECT_TRUE(spec.tied_embeddings);
}

TEST(ResolveModel, KeepsWhatIsGiven) {
  ModelConfig config = small_config();
  config.kv_heads = 3;
  config.head_size = 10;
  config.ffn = 100;
  config.vocabulary = 1000;
  config.qkv_bias = true;
  const ModelSpec spec = resolve_model(config, 128, 300);
  EXPECT_EQ(spec.kv_heads, 3);
  EXPECT_EQ(spec.head_size, 10);
  EXPECT_EQ(spec.ffn, 100);
  EXPECT_EQ(spec.vocabulary, 1000);
  EXPECT_TRUE(spec.qkv_bias);
}

TEST(ResolveModel, MultiTokenPredictionLooksNoFurtherThanTheSequence) {
  ModelConfig config = small_config();
  EXPECT_EQ(resolve_model(config, 128, 300).mtp_depth, 0);
  config.mtp_loss_weight = 0.3;
  EXPECT_THAT(message_of<ConfigError>([&] { resolve_model(config, 128, 300); }),
              HasSubstr("model.mtp_loss_weight = 0.3: the model has no multi-token prediction; "
                        "remove the key, or set model.mtp_depth"));
  config.mtp_depth = 3;
  const ModelSpec spec = resolve_model(config, 4, 300);
  EXPECT_EQ(spec.mtp_depth, 3);
  EXPECT_EQ(spec.mtp_loss_weight, 0.3);
  EXPECT_EQ(resolve_model(model_keys(spec), 4, 0), spec);
  EXPECT_THAT(message_of<ConfigError>([&] { resolve_model(config, 3, 300); }),
              HasSubstr("model.mtp_depth = 3: must be below train.sequence = 3; set at most "
                        "model.mtp_depth = 2"));
}

TEST(ResolveModel, APatternSaysLayersAndTheirNumber) {
  ModelConfig config = small_config();
  const int64_t layers = *config.layers;
  config.layers.reset();
  config.pattern = "attention mlp*2";
  const ModelSpec spec = resolve_model(config, 128, 300);
  EXPECT_EQ(spec.layers, LayerPattern::parse("attention mlp mlp"));
  config.layers = 4;
  EXPECT_EQ(message_of<ConfigError>([&] { resolve_model(config, 128, 300); }),
            "model.layers = 4: model.pattern = \"attention mlp*2\" has 3; remove either key");
  config.preset = "llama-1b";
  EXPECT_THAT(changed_keys_of_preset(config), testing::Contains("pattern"));

  EXPECT_EQ(resolve_model(with_layers(small_config(), spec.layers), 128, 300), spec);
  EXPECT_EQ(with_layers(config, layers).pattern, std::nullopt);
  EXPECT_EQ(resolve_model(with_layers(small_config(), layers), 128, 300),
            resolve_model(small_config(), 128, 300));
}

ModelConfig experts_config() {
  ModelConfig config = small_config();
  config.experts = 8;
  config.experts_per_token = 2;
  config.expert_ffn = 32;
  return config;
}

TEST(ResolveModel, ExpertsAreInAllLayersUnlessAPatternSaysWhere) {
  ModelConfig config = experts_config();
  EXPECT_EQ(resolve_model(config, 128, 300).layers.text(), "attention+moe*2");
  config.pattern = "attention+mlp attention+moe";
  const ModelSpec spec = resolve_model(config, 128, 300);
  EXPECT_EQ(spec.layers.text(), "attention+mlp attention+moe");
  EXPECT_EQ(spec.experts, 8);
  EXPECT_TRUE(spec.router.normalize);
  config.pattern = "attention+mlp*2";
  EXPECT_EQ(message_of<ConfigError>([&] { resolve_model(config, 128, 300); }),
            "model.experts = 8: model.pattern = \"attention+mlp*2\" has no \"moe\"; remove either "
            "key, or write \"attention+moe\" for layers with experts");
}

TEST(ResolveModel, RefusesKeysOfExpertsWithoutExperts) {
  ModelConfig config = small_config();
  config.router_scale = 2.5;
  EXPECT_EQ(message_of<ConfigError>([&] { resolve_model(config, 128, 300); }),
            "model.router_scale = 2.5: the model has no experts; remove the key, or set "
            "model.experts");
  config.router_scale.reset();
  config.shared_gate = false;
  EXPECT_THROW(resolve_model(config, 128, 300), ConfigError);
}

ModelConfig latents_config() {
  ModelConfig config = small_config();
  config.kv_heads.reset();
  config.head_size.reset();
  config.pattern = "mla+mlp*2";
  config.kv_lora_rank = 16;
  config.qk_nope_head_dim = 8;
  config.qk_rope_head_dim = 4;
  config.v_head_dim = 6;
  return config;
}

std::string fault_of(const ModelConfig& config) {
  return message_of<ConfigError>([&] { resolve_model(config, 128, 300); });
}

TEST(ResolveModel, LatentAttentionHasSizesOfItsOwn) {
  ModelConfig config = latents_config();
  const ModelSpec spec = resolve_model(config, 128, 300);
  EXPECT_EQ(spec.kv_heads, 0);
  EXPECT_EQ(spec.head_size, 0);
  EXPECT_EQ(spec.q_lora_rank, 0);
  EXPECT_EQ(spec.kv_lora_rank, 16);
  EXPECT_EQ(spec.v_head_dim, 6);
  EXPECT_EQ(resolve_model(model_keys(spec), 128, 300), spec);
  config.q_lora_rank = 12;
  EXPECT_EQ(resolve_model(config, 128, 300).q_lora_rank, 12);
}

TEST(ResolveModel, RefusesLatentsThatDoNotFit) {
  const auto refused = [](const auto& change) {
    ModelConfig config = latents_config();
    change(config);
    return fault_of(config);
  };
  EXPECT_EQ(refused([](ModelConfig& c) { c.pattern.reset(); }),
            "model.kv_lora_rank = 16: no layer of model.pattern has \"mla\"; remove the key, or "
            "write \"mla+mlp\" for layers with latent attention");
  EXPECT_EQ(refused([](ModelConfig& c) { c.v_head_dim.reset(); }),
            "model.v_head_dim is not given; set it, or name a model.preset");
  EXPECT_EQ(refused([](ModelConfig& c) { c.qk_rope_head_dim = 3; }),
            "model.qk_rope_head_dim = 3: must be even, because rotary positions rotate pairs; set "
            "model.qk_rope_head_dim = 4");
  EXPECT_EQ(refused([](ModelConfig& c) { c.kv_heads = 2; }),
            "model.kv_heads = 2: no layer of model.pattern has \"attention\"; remove the key");
  EXPECT_EQ(refused([](ModelConfig& c) { c.head_size = 8; }),
            "model.head_size = 8: no layer of model.pattern has \"attention\"; remove the key");
  EXPECT_EQ(refused([](ModelConfig& c) { c.qkv_bias = true; }),
            "model.qkv_bias = true: latent attention has no biases; set model.qkv_bias = false, or "
            "use no \"mla\" in model.pattern");
  EXPECT_EQ(refused([](ModelConfig& c) { c.family = "qwen3"; }),
            "model.family: latent attention has the norms and positions of a llama; set "
            "model.family = \"llama\", or use no \"mla\" in model.pattern");
}

TEST(ResolveModel, AWindowIsThatOfAllLayersUnlessAPatternSaysWhere) {
  ModelConfig config = small_config();
  config.sliding_window = 16;
  const ModelSpec all = resolve_model(config, 128, 300);
  EXPECT_EQ(all.layers, LayerPattern(all.layers.size(), {.mixer = &kSlidingBlock}));
  EXPECT_EQ(all.sliding_window, 16);
  EXPECT_EQ(resolve_model(model_keys(all), 128, 300), all);
  config.layers.reset();
  config.pattern = "attention+mlp sliding+mlp";
  EXPECT_EQ(resolve_model(config, 128, 300).layers.text(), "attention+mlp sliding+mlp");
  config.sliding_window = 0;
  const ModelSpec none = resolve_model(config, 128, 300);
  EXPECT_EQ(none.layers.text(), "attention+mlp*2");
  EXPECT_EQ(none.sliding_window, 0);
  config.sliding_window.reset();
  EXPECT_EQ(fault_of(config), "model.sliding_window is not given; set it, or name a model.preset");
  config.pattern = "mlp*2";
  config.sliding_window = 16;
  EXPECT_EQ(fault_of(config),
            "model.sliding_window = 16: no layer of model.pattern has \"attention\" or "
            "\"sliding\"; remove the key");
}

TEST(ResolveModel, KeysChangeTheWindowOfAPreset) {
  ModelConfig config{.preset = "mistral-7b"};
  EXPECT_EQ(resolve_model(config, 128, 300), find_preset("mistral-7b").spec);
  config.sliding_window = 64;
  EXPECT_EQ(changed_keys_of_preset(config), std::vector<std::string>{"sliding_window"});
  EXPECT_EQ(resolve_model(config, 128, 300).sliding_window, 64);
  config.sliding_window = 0;
  EXPECT_EQ(resolve_model(config, 128, 300).layers, LayerPattern(32));
  config = {.preset = "mistral-7b"};
  config.experts = 4;
  config.experts_per_token = 2;
  config.expert_ffn = 64;
  EXPECT_EQ(resolve_model(config, 128, 300).layers.text(), "sliding+moe*32");
}

TEST(ResolveModel, TheFamilyAndItsKeysSayHowRoutersWork) {
  ModelConfig config = experts_config();
  config.family = "olmoe";
  EXPECT_FALSE(resolve_model(config, 128, 300).router.normalize);
  config.router_normalize = true;
  config.router_scores = "sigmoid";
  config.router_groups = 4;
  config.router_kept_groups = 2;
  config.router_scale = 2.5;
  config.router_bias = true;
  config.router_logit_bias = true;
  EXPECT_EQ(resolve_model(config, 128, 300).router, (RouterSpec{.sigmoid = true,
                                                                .normalize = true,
                                                                .scale = 2.5,
                                                                .bias = true,
                                                                .logit_bias = true,
                                                                .groups = 4,
                                                                .kept_groups = 2}));
  config.experts_per_token = 5;
  EXPECT_EQ(message_of<ConfigError>([&] { resolve_model(config, 128, 300); }),
            "model.experts_per_token = 5: must be at most 4, the experts of "
            "model.router_kept_groups = 2 groups");
}

TEST(ResolveModel, KeysOfRotaryFrequenciesChangeThoseOfThePreset) {
  ModelConfig config;
  config.preset = "llama-1b";
  RopeScaling expected = find_preset("llama-1b").spec.rope_scaling;
  EXPECT_EQ(resolve_model(config, 2048, 0).rope_scaling, expected);
  config.rope_factor = 16.0;
  config.rope_low_freq_factor = 2.0;
  expected.factor = 16;
  expected.low_freq_factor = 2;
  const ModelSpec changed = resolve_model(config, 2048, 0);
  EXPECT_EQ(changed.rope_scaling, expected);
  EXPECT_EQ(resolve_model(model_keys(changed), 2048, 0).rope_scaling, expected);
  config = {};
  config.preset = "llama-1b";
  config.rope_type = "default";
  EXPECT_EQ(resolve_model(config, 2048, 0).rope_scaling, RopeScaling());
  config.rope_type = "yarn";
  config.rope_factor = 4.0;
  config.rope_original_max_position_embeddings = 1024;
  config.rope_truncate = false;
  EXPECT_EQ(resolve_model(config, 2048, 0).rope_scaling,
            (RopeScaling{.type = RopeType::kYarn,
                         .factor = 4,
                         .original_max_position_embeddings = 1024,
                         .truncate = false}));
  // Another family has no use for the preset's.
  config = {};
  config.preset = "llama-1b";
  config.family = "gpt2";
  config.kv_heads = 32;
  EXPECT_EQ(resolve_model(config, 2048, 0).rope_scaling, RopeScaling());
}

TEST(ResolveModel, RefusesKeysThatRotaryFrequenciesDoNotHave) {
  const auto refused = [](auto change) {
    ModelConfig config = small_config();
    change(config);
    return message_of<ConfigError>([&] { resolve_model(config, 128, 300); });
  };
  EXPECT_EQ(
      refused([](ModelConfig& c) { c.rope_beta_fast = 32.0; }),
      "model.rope_beta_fast = 32: model.rope_type = \"default\" has no such parameter; remove "
      "the key, or set model.rope_type = \"yarn\"");
  EXPECT_EQ(
      refused([](ModelConfig& c) { c.rope_factor = 2.0; }),
      "model.rope_factor = 2: model.rope_type = \"default\" has no such parameter; remove the "
      "key, or set model.rope_type = \"linear\" or \"llama3\" or \"yarn\" or \"longrope\"");
  EXPECT_EQ(refused([](ModelConfig& c) { c.rope_type = "llama3"; }),
            "model.rope_original_max_position_embeddings = 0: must be the positions of the model "
            "before its context was extended");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.rope_type = "yarn";
              c.rope_original_max_position_embeddings = 64;
              c.rope_theta = 1.0;
            }),
            "model.rope_theta = 1: must be above 1 with model.rope_type = \"yarn\"");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.rope_type = "yarn";
              c.rope_original_max_position_embeddings = 64;
              c.rope_beta_slow = 40.0;
            }),
            "model.rope_beta_slow = 40: must be positive and below rope_beta_fast = 32");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.family = "gpt2";
              c.rope_type = "linear";
            }),
            "model.rope_type = \"linear\": a gpt2 model has no rotary positions; remove the key");
}

TEST(ResolveModel, RotatesPartsOfHeadsWithFactorsOfTheirPairs) {
  ModelConfig config = small_config();
  config.head_size = 16;
  config.partial_rotary_factor = 0.25;
  config.rope_type = "longrope";
  config.rope_factor = 4.0;
  config.rope_original_max_position_embeddings = 64;
  config.rope_short_factor = "1, 1.5";
  config.rope_long_factor = "1,2";
  const ModelSpec spec = resolve_model(config, 128, 300);
  EXPECT_EQ(spec.rotated_size(), 4);
  EXPECT_EQ(spec.rope_scaling.long_factor, "1,2");
  EXPECT_EQ(resolve_model(model_keys(spec), 128, 300), spec);
  const auto refused = [&](auto change) {
    ModelConfig changed = config;
    change(changed);
    return message_of<ConfigError>([&] { resolve_model(changed, 128, 300); });
  };
  EXPECT_EQ(
      refused([](ModelConfig& c) { c.rope_long_factor = "1,2,3"; }),
      "model.rope_long_factor = \"1,2,3\": must list 2 positive numbers, one for each rotated "
      "pair");
  EXPECT_EQ(refused([](ModelConfig& c) { c.rope_short_factor.reset(); }),
            "model.rope_short_factor = \"\": must list 2 positive numbers, one for each rotated "
            "pair");
  EXPECT_EQ(refused([](ModelConfig& c) { c.partial_rotary_factor = 0.2; }),
            "model.partial_rotary_factor = 0.2: rotates 3 of model.head_size = 16 elements, which "
            "must be pairs; set model.partial_rotary_factor = 0.25");
  EXPECT_EQ(refused([](ModelConfig& c) { c.partial_rotary_factor = 0.0; }),
            "model.partial_rotary_factor = 0: rotates 0 of model.head_size = 16 elements, which "
            "must be pairs; set model.partial_rotary_factor = 0.125");
  EXPECT_EQ(refused([](ModelConfig& c) { c.rope_original_max_position_embeddings = 1; }),
            "model.rope_original_max_position_embeddings = 1: must be at least 2 with longrope");
  ModelConfig other;
  other.preset = "gpt2-124m";
  other.partial_rotary_factor = 0.5;
  EXPECT_EQ(message_of<ConfigError>([&] { resolve_model(other, 128, 0); }),
            "model.partial_rotary_factor = 0.5: the model has no attention that rotates "
            "heads; remove the key");
}

TEST(ResolveModel, TheFamilyOfGemmaSaysWhatItsNormsAndEmbeddingsAre) {
  ModelConfig config = small_config();
  config.family = "gemma3_text";
  config.pattern = "sliding+mlp attention+mlp";
  config.layers.reset();
  config.sliding_window = 8;
  config.rope_local_base_freq = 100.0;
  config.query_pre_attn_scalar = 9;
  const ModelSpec spec = resolve_model(config, 128, 300);
  EXPECT_EQ(spec.norm_offset, 1);
  EXPECT_TRUE(spec.post_norms && spec.scale_embedding && spec.tied_embeddings);
  EXPECT_DOUBLE_EQ(spec.attention_scale(), 1.0 / 3);
  EXPECT_EQ(resolve_model(model_keys(spec), 128, 300), spec);
  config.post_norms = false;
  config.norm_offset = 0;
  const ModelSpec changed = resolve_model(config, 128, 300);
  EXPECT_FALSE(changed.post_norms);
  EXPECT_EQ(resolve_model(model_keys(changed), 128, 300), changed);
  ModelConfig preset;
  preset.preset = "gemma-3-4b";
  const ModelSpec whole = resolve_model(preset, 128, 0);
  EXPECT_EQ(whole, find_preset("gemma-3-4b").spec);
  ModelConfig keys = model_keys(whole);
  const ModelSpec again = resolve_model(keys, 128, 0);
  EXPECT_EQ(again.rope_local_base_freq, 10000);
  preset.sliding_window = 0;  // no windows, so no base of theirs
  EXPECT_EQ(resolve_model(preset, 128, 0).rope_local_base_freq, 0);
}

TEST(ResolveModel, RefusesKeysOfGemmaThatDoNotFit) {
  const auto refused = [](auto change) {
    ModelConfig config = small_config();
    change(config);
    return message_of<ConfigError>([&] { resolve_model(config, 128, 300); });
  };
  EXPECT_EQ(refused([](ModelConfig& c) { c.rope_local_base_freq = 100.0; }),
            "model.rope_local_base_freq = 100: no layer of model.pattern has \"sliding\"; remove "
            "the key, or write \"sliding+mlp\" for layers with windows");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.family = "gpt2";
              c.post_norms = true;
            }),
            "model.post_norms = true: a gpt2 model has LayerNorms, not RMSNorms; remove the key");
  EXPECT_THAT(refused([](ModelConfig& c) {
                c.family = "gemma3_text";
                c.experts = 4;
                c.experts_per_token = 2;
                c.expert_ffn = 8;
              }),
              testing::StartsWith("model.family = \"gemma3_text\": experts have SwiGLU"));
}

TEST(ResolveModel, FewerLayersOfAPresetAreOfItsKinds) {
  ModelConfig config;
  config.preset = "olmoe-1b-7b";
  config.layers = 6;
  ModelSpec expected = find_preset("olmoe-1b-7b").spec;
  expected.layers = LayerPattern(6, {.feed_forward = &kMoeBlock});
  EXPECT_EQ(resolve_model(config, 2048, 0), expected);
}

TEST(ResolveModel, NamesAMissingKey) {
  const auto message_without = [](auto member, int64_t tokenizer_vocabulary) {
    ModelConfig config = small_config();
    config.*member = std::nullopt;
    return message_of<ConfigError>([&] { resolve_model(config, 128, tokenizer_vocabulary); });
  };
  EXPECT_THAT(message_without(&ModelConfig::layers, 300), HasSubstr("model.layers is not given"));
  EXPECT_THAT(message_without(&ModelConfig::width, 300), HasSubstr("model.width is not given"));
  EXPECT_THAT(message_without(&ModelConfig::heads, 300), HasSubstr("model.heads is not given"));
  EXPECT_THAT(message_without(&ModelConfig::vocabulary, 0),
              HasSubstr("model.vocabulary is not given"));
}

TEST(ResolveModel, NeedsNoHeadsWithoutAttention) {
  ModelConfig config = small_config();
  config.layers = std::nullopt;
  config.pattern = "mlp*2";
  config.heads = std::nullopt;
  const ModelSpec spec = resolve_model(config, 128, 300);
  EXPECT_EQ(spec.kv_heads, 0);
  EXPECT_THAT(describe_model(spec), HasSubstr("2 layers (mlp*2), width 96, ffn 256, vocabulary"));
}

TEST(ResolveModel, RefusesHeadsThatDoNotDivideTheWidth) {
  ModelConfig config = small_config();
  config.heads = 5;
  EXPECT_THAT(message_of<ConfigError>([&] { resolve_model(config, 128, 300); }),
              HasSubstr("model.heads = 5: must divide model.width = 96"));
}

TEST(ResolveModel, RefusesAVocabularySmallerThanTheTokenizers) {
  ModelConfig config = small_config();
  config.vocabulary = 299;
  EXPECT_THAT(message_of<ConfigError>([&] { resolve_model(config, 128, 300); }),
              HasSubstr("model.vocabulary = 299: the tokenizer has 300 ids"));
}

TEST(ResolveModel, RefusesImpossibleSizesAndUnknownPresets) {
  ModelConfig config = small_config();
  config.kv_heads = 4;
  EXPECT_THAT(message_of<ConfigError>([&] { resolve_model(config, 128, 300); }),
              HasSubstr("model.kv_heads = 4"));
  config.preset = "llama-2b";
  EXPECT_THAT(message_of<ConfigError>([&] { resolve_model(config, 128, 300); }),
              HasSubstr("llama-2b"));
}

TEST(ModelKeys, AreThoseOfTheModel) {
  for (const ModelPreset& preset : model_presets()) {
    const ModelConfig keys = model_keys(preset.spec);
    const ModelSpec again = resolve_model(keys, preset.spec.max_positions, 0);
    EXPECT_EQ(model_keys(again), keys) << preset.name;
    EXPECT_EQ(num_parameters(again), num_parameters(preset.spec)) << preset.name;
    EXPECT_EQ(again.style, preset.spec.style) << preset.name;
    RunConfig run;
    run.model = keys;
    run.logging.run_folder = "unused";
    EXPECT_NO_THROW(validate(run)) << preset.name;
  }
}

ModelConfig states_config() {
  ModelConfig config;
  config.family = "mamba2";
  config.pattern = "MM";
  config.width = 96;
  config.mamba_num_heads = 6;
  config.mamba_head_dim = 32;
  config.ssm_state_size = 16;
  return config;
}

TEST(ResolveModel, DerivesWhatLayersWithStatesLeaveOpen) {
  const ModelSpec spec = resolve_model(states_config(), 128, 300);
  EXPECT_EQ(spec.style, kMamba2Style);
  EXPECT_EQ(spec.layers.text(), "mamba*2");
  EXPECT_EQ(spec.mamba_n_groups, 1);
  EXPECT_EQ(spec.conv_kernel, 4);
  EXPECT_EQ(spec.mamba_chunk_size, 128);
  EXPECT_TRUE(spec.tied_embeddings);
  EXPECT_EQ(resolve_model(model_keys(spec), 128, 300), spec);
  ModelConfig config;
  config.preset = "nemotron-h-4b";
  ModelSpec hybrid = resolve_model(config, 128, 300);
  EXPECT_EQ(hybrid, find_preset("nemotron-h-4b").spec);
  hybrid.max_positions = 0;  // says nothing without positions
  EXPECT_EQ(resolve_model(model_keys(hybrid), 128, 300), hybrid);
}

// As a search prices one kind of layer at a time.
TEST(WithLayers, ForgetsKeysOfOtherBlocks) {
  ModelConfig config = states_config();
  config.heads = 4;
  config.pattern = "mamba attention+moe";
  config.experts = 8;
  config.experts_per_token = 2;
  config.expert_ffn = 32;
  config.router_scale = 2.0;
  for (const char* const kind : {"mamba", "attention+moe", "mlp"}) {
    const LayerPattern layers = LayerPattern::parse(kind);
    EXPECT_EQ(resolve_model(with_layers(config, layers), 128, 300).layers, layers);
  }
}

TEST(ResolveModel, RefusesKeysOfStatesWithoutThem) {
  ModelConfig config = states_config();
  config.ssm_state_size.reset();
  EXPECT_EQ(message_of<ConfigError>([&] { resolve_model(config, 128, 300); }),
            "model.ssm_state_size is not given; set it, or name a model.preset");
  config = small_config();
  config.mamba_dt_min = 0.5;
  EXPECT_EQ(message_of<ConfigError>([&] { resolve_model(config, 128, 300); }),
            "model.mamba_dt_min = 0.5: no layer of model.pattern has \"mamba\"; remove the key, or "
            "write \"mamba\" for layers with states");
}

}  // namespace
}  // namespace braid
