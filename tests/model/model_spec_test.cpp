#include "model/model_spec.h"
#include "model/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "model/parameters.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

struct PublishedCount {
  const char* preset;
  int64_t parameters;
};

class PresetCount : public testing::TestWithParam<PublishedCount> {};

// Numbers of parameters as the published checkpoints have them; those of qwen2-57b-a14b and
// nemotron-h and nemotron-3-nano are computed from their published sizes. Those of deepseek-v3 are
// without the layer that predicts a second token.
TEST_P(PresetCount, EqualsThePublishedModel) {
  EXPECT_EQ(num_parameters(find_preset(GetParam().preset).spec), GetParam().parameters);
}

INSTANTIATE_TEST_SUITE_P(
    All, PresetCount,
    testing::Values(
        PublishedCount{"gpt2-124m", 124439808}, PublishedCount{"gpt2-355m", 354823168},
        PublishedCount{"gpt2-774m", 774030080}, PublishedCount{"gpt2-1.5b", 1557611200},
        PublishedCount{"llama-1b", 1235814400}, PublishedCount{"llama-3b", 3212749824},
        PublishedCount{"llama-8b", 8030261248}, PublishedCount{"llama-70b", 70553706496},
        PublishedCount{"llama-405b", 405853388800}, PublishedCount{"mistral-7b", 7241732096},
        PublishedCount{"ministral-8b", 8019808256}, PublishedCount{"qwen2.5-0.5b", 494032768},
        PublishedCount{"qwen2.5-1.5b", 1543714304}, PublishedCount{"qwen2.5-3b", 3085938688},
        PublishedCount{"qwen2.5-7b", 7615616512}, PublishedCount{"qwen2.5-14b", 14770033664},
        PublishedCount{"qwen2.5-32b", 32763876352}, PublishedCount{"qwen3-0.6b", 596049920},
        PublishedCount{"qwen3-1.7b", 1720574976}, PublishedCount{"qwen3-4b", 4022468096},
        PublishedCount{"qwen3-8b", 8190735360}, PublishedCount{"qwen3-14b", 14768307200},
        PublishedCount{"phi-3-mini", 3821079552}, PublishedCount{"phi-3-medium", 13960238080},
        PublishedCount{"phi-4", 14659507200},
        // Of those with images, the text part: all less 416,866,032 in the encoder of images and
        // 1,152 width + 1,152 in what projects its results.
        PublishedCount{"gemma-3-270m", 268098176}, PublishedCount{"gemma-3-1b", 999885952},
        PublishedCount{"gemma-3-4b", 4300079472 - 416866032 - 1152 * 2561},
        PublishedCount{"gemma-3-12b", 12187325040 - 416866032 - 1152 * 3841},
        PublishedCount{"gemma-3-27b", 27432406640 - 416866032 - 1152 * 5377},
        PublishedCount{"phi-3-mini-128k", 3821079552}, PublishedCount{"phi-4-mini", 3836021760},
        PublishedCount{"qwen3-32b", 32762123264}, PublishedCount{"qwen3-30b-a3b", 30532122624},
        PublishedCount{"qwen3-235b-a22b", 235093634560},
        PublishedCount{"qwen1.5-moe-a2.7b", 14315784192},
        PublishedCount{"qwen2-57b-a14b", 57408658944}, PublishedCount{"mixtral-8x7b", 46702792704},
        PublishedCount{"mixtral-8x22b", 140620634112}, PublishedCount{"olmoe-1b-7b", 6919161856},
        PublishedCount{"deepseek-v2-lite", 15706484224},
        PublishedCount{"deepseek-v2", 235741434880}, PublishedCount{"deepseek-v3", 671026419200},
        PublishedCount{"mamba2-130m", 128989632}, PublishedCount{"mamba2-2.7b", 2702599680},
        PublishedCount{"nemotron-h-4b", 4489223040}, PublishedCount{"nemotron-h-8b", 8100852736},
        // With the biases of routers, which are buffers there.
        PublishedCount{"nemotron-3-nano", 31577940288}),
    [](const auto& test) {
      std::string name = test.param.preset;
      for (char& c : name) {
        c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      }
      return name;
    });

TEST(ModelSpec, EveryPresetIsCounted) {
  EXPECT_EQ(model_presets().size(), 48u);
  for (const ModelPreset& preset : model_presets()) {
    EXPECT_NO_THROW(check_model(preset.spec)) << preset.name;
  }
}

TEST(ModelSpec, UnknownPresetNamesTheNearest) {
  try {
    find_preset("lama-8b");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.preset = \"lama-8b\""));
    EXPECT_THAT(error.what(), HasSubstr("did you mean \"llama-8b\""));
  }
}

TEST(ModelSpec, PaddedVocabularyIsTheNextMultipleOf128) {
  EXPECT_EQ((ModelSpec{.vocabulary = 1}.padded_vocabulary()), 128);
  EXPECT_EQ((ModelSpec{.vocabulary = 128}.padded_vocabulary()), 128);
  EXPECT_EQ((ModelSpec{.vocabulary = 50257}.padded_vocabulary()), 50304);
}

// The count of targets: 6 * matrix parameters + 6 * layers * sequence * width.
TEST(ModelSpec, FlopsPerTokenFollowTheStatedFormula) {
  const ModelSpec& spec = find_preset("llama-8b").spec;
  const double matrices =
      32.0 * (4096.0 * 6144 + 4096.0 * 4096 + 3.0 * 4096 * 14336) + 4096.0 * 128256;
  EXPECT_DOUBLE_EQ(train_flops_per_token(spec, 8192), 6.0 * matrices + 6.0 * 32 * 8192 * 4096);
}

// A window of W keys in a sequence of T tokens: W (1 - W / (2 T)) keys per token instead of T / 2.
TEST(ModelSpec, FlopsOfWindowsAreThoseOfTheirPairs) {
  ModelSpec spec = find_preset("llama-8b").spec;
  const double whole = train_flops_per_token(spec, 8192);
  spec.layers = LayerPattern::parse("attention+mlp*8 sliding+mlp*24");
  spec.sliding_window = 2048;
  const double keys = 2048 * (1 - 2048.0 / (2 * 8192));
  EXPECT_DOUBLE_EQ(train_flops_per_token(spec, 8192), whole - 6.0 * 24 * 2 * 4096 * (4096 - keys));
  for (const int64_t window : {8192, 100000}) {
    spec.sliding_window = window;
    EXPECT_DOUBLE_EQ(train_flops_per_token(spec, 8192), whole);
  }
  EXPECT_THAT(describe_model(find_preset("mistral-7b").spec),
              HasSubstr("32 heads (8 kv) of 128 in windows of 4096, "));
}

TEST(ModelSpec, MultiTokenPredictionCountsALayerTwoProjectionsAndTheHead) {
  ModelSpec spec = find_preset("llama-8b").spec;
  const int64_t parameters = num_parameters(spec);
  const double flops = train_flops_per_token(spec, 8192);
  spec.mtp_depth = 2;
  const int64_t layer = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336;
  EXPECT_EQ(num_parameters(spec), parameters + 2 * (layer + 2 * 4096 * 4096 + 5 * 4096));
  const double products = static_cast<double>(layer) + 2.0 * 4096 * 4096 + 4096.0 * 128256;
  EXPECT_DOUBLE_EQ(train_flops_per_token(spec, 8192), flops + 12 * (products + 8192.0 * 4096));
  EXPECT_THAT(describe_model(spec), HasSubstr("32 layers and 2 of multi-token prediction, width"));
}

// Those of routers that a token does not go to are idle there, too.
TEST(ModelSpec, MultiTokenPredictionHasExpertsIfTheLastLayerHas) {
  ModelSpec spec = find_preset("deepseek-v3").spec;
  const int64_t idle = num_idle_parameters(spec);
  spec.mtp_depth = 1;
  EXPECT_EQ(num_idle_parameters(spec), idle / 58 * 59);
}

TEST(ModelSpec, MultiTokenPredictionIsRefusedWhereItCannotBe) {
  ModelSpec spec = find_preset("gpt2-124m").spec;
  spec.mtp_depth = 1;
  EXPECT_THAT(message_of<ConfigError>([&] { check_model(spec); }),
              HasSubstr("model.mtp_depth = 1: a gpt2 model has learned positions"));
  spec = find_preset("llama-8b").spec;
  spec.mtp_depth = 1;
  spec.mtp_loss_weight = 0;
  EXPECT_THAT(message_of<ConfigError>([&] { check_model(spec); }),
              HasSubstr("model.mtp_loss_weight = 0: must be above 0; set model.mtp_depth = 0"));
}

// Nemotron-H-8B: C B^T of 8 groups over chunks of 128, 128 heads of 64 with states of 128, and 4
// taps of 10,240 channels, beside two projections.
TEST(ModelSpec, FlopsOfStatesAreThoseOfSumsOverChunks) {
  ModelSpec spec = find_preset("nemotron-h-8b").spec;
  spec.layers = LayerPattern::parse("M");
  const double states = 8.0 * 128 * 128 + 128.0 * (128 * 64 + 2 * 64 * 128) + 4.0 * 10240;
  const double matrices = 4096.0 * (2 * 8192 + 2 * 1024 + 128) + 4096.0 * 8192 + 4096.0 * 131072;
  EXPECT_DOUBLE_EQ(train_flops_per_token(spec, 8192), 6.0 * (matrices + states));
}

// Experts without a gate have two matrices.
TEST(ModelSpec, ExpertsOfSquaredReluCountTwoMatrices) {
  const ModelSpec& spec = find_preset("nemotron-3-nano").spec;
  EXPECT_EQ(num_idle_parameters(spec), int64_t{23} * 122 * 2 * 2688 * 1856);
  ModelSpec layer = spec;
  layer.layers = LayerPattern::parse("E");
  EXPECT_EQ(num_matrix_parameters(layer),
            2688 * (128 + 6 * 2 * 1856 + 2 * 3712) + int64_t{2688} * 131072);
}

struct BadSize {
  int64_t ModelSpec::*member;
  int64_t value;
  const char* message;
};

TEST(ModelSpec, ImpossibleSizesAreRefusedByName) {
  const BadSize cases[] = {
      {&ModelSpec::width, -1, "model.width = -1"},
      {&ModelSpec::heads, 0, "model.heads = 0"},
      {&ModelSpec::kv_heads, 3,
       "model.kv_heads = 3: must divide model.heads = 32; set model.kv_heads = 1"},
      {&ModelSpec::kv_heads, 12, "set model.kv_heads = 4"},
      {&ModelSpec::head_size, 7, "must be even for rotary embeddings; set model.head_size = 8"},
      {&ModelSpec::ffn, 0, "model.ffn = 0"},
      {&ModelSpec::vocabulary, 0, "model.vocabulary = 0"},
  };
  for (const BadSize& bad : cases) {
    ModelSpec spec = find_preset("llama-1b").spec;
    spec.*bad.member = bad.value;
    try {
      check_model(spec);
      ADD_FAILURE() << bad.message << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(bad.message));
    }
  }
  const auto hybrid_message = [](int64_t ModelSpec::*member, int64_t value) {
    ModelSpec spec = find_preset("nemotron-h-8b").spec;
    spec.*member = value;
    return message_of<ConfigError>([&] { check_model(spec); });
  };
  EXPECT_THAT(hybrid_message(&ModelSpec::mamba_num_heads, 0), HasSubstr("mamba_num_heads = 0"));
  EXPECT_EQ(hybrid_message(&ModelSpec::mamba_n_groups, 12),
            "model.mamba_n_groups = 12: must divide model.mamba_num_heads = 128; set "
            "model.mamba_n_groups = 4");
  ModelSpec spec = find_preset("llama-1b").spec;
  spec.layers = 0;
  EXPECT_THAT(message_of<ConfigError>([&] { check_model(spec); }), HasSubstr("model.layers = 0"));
}

}  // namespace
}  // namespace braid
