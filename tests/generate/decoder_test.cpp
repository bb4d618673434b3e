#include "generate/decoder.h"

#include <gmock/gmock.h>

#include "generate/causal_model.h"
#include "model/parameters.h"
#include "support/model_state.h"

namespace braid {
namespace {

constexpr int64_t kContext = 80;

struct Family {
  std::string name;
  ModelSpec model;
};

ModelSpec base_model() {
  return {.layers = 2,
          .width = 16,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 8,
          .ffn = 24,
          .vocabulary = 37,
          .init_std = 0.3};
}

ModelSpec with_mamba(ModelSpec model, const std::string& pattern) {
  model.layers = LayerPattern::parse(pattern);
  model.mamba_num_heads = 4;
  model.mamba_head_dim = 6;
  model.ssm_state_size = 5;
  model.mamba_n_groups = 2;
  model.conv_kernel = 4;
  model.mamba_chunk_size = 7;
  return model;
}

ModelSpec with_experts(ModelSpec model) {
  model.experts = 6;
  model.experts_per_token = 2;
  model.expert_ffn = 12;
  return model;
}

/// Grouped heads with scaled rotation; learned positions and biases; norms of heads; experts;
/// windows; latent attention; states alone, and with attention that has no positions.
std::vector<Family> families() {
  std::vector<Family> found;
  ModelSpec llama = base_model();
  llama.rope_scaling = {.type = RopeType::kLinear, .factor = 4.0};
  found.push_back({"llama", llama});
  ModelSpec gpt2 = base_model();
  gpt2.style = kGpt2Style;
  gpt2.kv_heads = gpt2.heads;
  gpt2.qkv_bias = true;
  gpt2.max_positions = kContext;
  found.push_back({"gpt2", gpt2});
  ModelSpec qwen3 = with_experts(base_model());
  qwen3.style = kQwen3Style;
  qwen3.layers = LayerPattern::parse("attention+mlp attention+moe");
  found.push_back({"qwen3 with experts", qwen3});
  qwen3.router.logit_bias = true;
  found.push_back({"biases of logits", qwen3});
  ModelSpec windows = base_model();
  windows.layers = LayerPattern::parse("sliding+mlp attention+mlp sliding+mlp");
  windows.sliding_window = 5;
  found.push_back({"windows", windows});
  ModelSpec gemma = windows;
  gemma.style = kGemma3Style;
  gemma.norm_offset = 1;
  gemma.post_norms = true;
  gemma.scale_embedding = true;
  gemma.query_pre_attn_scalar = 5;
  gemma.rope_local_base_freq = 100;
  found.push_back({"gemma 3", gemma});
  ModelSpec phi = base_model();
  phi.style = kPhi3Style;
  phi.partial_rotary_factor = 0.5;
  found.push_back({"partial rotation", phi});
  phi.rope_scaling = {.type = RopeType::kLongrope,  // other frequencies of more than 27 tokens
                      .factor = 4,
                      .original_max_position_embeddings = 27,
                      .short_factor = "1, 1.5",
                      .long_factor = "2, 6"};
  found.push_back({"longrope", phi});
  ModelSpec mla = base_model();
  mla.layers = LayerPattern::parse("mla+mlp*2");
  mla.kv_heads = 0;
  mla.head_size = 0;
  mla.q_lora_rank = 10;
  mla.kv_lora_rank = 12;
  mla.qk_nope_head_dim = 6;
  mla.qk_rope_head_dim = 4;
  mla.v_head_dim = 8;
  found.push_back({"latent attention", mla});
  ModelSpec mamba = with_mamba(base_model(), "mamba*3");
  mamba.style = kMamba2Style;
  found.push_back({"mamba2", mamba});
  ModelSpec hybrid = with_mamba(base_model(), "M*-M*");
  hybrid.style = kNemotronHStyle;
  found.push_back({"hybrid", hybrid});
  return found;
}

class DecoderOf : public ::testing::TestWithParam<Family> {
 protected:
  const ModelSpec& model() const { return GetParam().model; }
  Decoder decoder(int64_t num_sequences) const {
    return {model(), state_, kContext, num_sequences, {.threads = 1}};
  }
  std::vector<int32_t> tokens(int64_t count, int32_t seed = 1) const {
    std::vector<int32_t> made;
    for (int64_t i = 0; i < count; ++i) {
      made.push_back(static_cast<int32_t>((i * i + 5 * seed + i * seed) % model().vocabulary));
    }
    return made;
  }
  /// What the whole sequence gives, after its last token.
  std::vector<float> whole(const std::vector<int32_t>& sequence) {
    whole_.run(sequence);
    return whole_.logits(std::ssize(sequence) - 1, 1);
  }
  void expect_whole(const std::vector<float>& logits, const std::vector<int32_t>& sequence) {
    const std::vector<float> expected = whole(sequence);
    ASSERT_EQ(logits.size(), expected.size());
    for (size_t i = 0; i < logits.size(); ++i) {  // f32, sums of up to 80 in another order
      EXPECT_NEAR(logits[i], expected[i], 2e-5f * (1 + std::abs(expected[i]))) << i;
    }
  }

 private:
  ParameterLayout layout_ = make_parameter_layout(model_parameters(model()));
  ModelState state_ = initial_state(layout_, model(), 3);
  CausalModel whole_{model(), state_, kContext, {.threads = 1}};
};

// A prompt longer than the largest program but one, then token by token to the end of the context.
TEST_P(DecoderOf, GivesTheLogitsOfTheWholeSequence) {
  Decoder decoder = this->decoder(1);
  const std::vector<int32_t> all = tokens(kContext);
  const std::vector<int32_t> prompt(all.begin(), all.begin() + 67);
  const auto append = [&](std::vector<int32_t> more) {
    return decoder.append(std::array{std::move(more)})[0];
  };
  expect_whole(append(prompt), prompt);
  for (size_t end = 68; end <= all.size(); ++end) {
    expect_whole(append({all[end - 1]}), {all.begin(), all.begin() + static_cast<ptrdiff_t>(end)});
  }
}

// Sequences of other lengths run with it, start again and stand still.
TEST_P(DecoderOf, KeepsSequencesApart) {
  Decoder decoder = this->decoder(3);
  std::vector<std::vector<int32_t>> sequences(3);
  const auto append = [&](const std::vector<std::vector<int32_t>>& more) {
    const auto logits = decoder.append(more);
    for (size_t i = 0; i < more.size(); ++i) {
      sequences[i].insert(sequences[i].end(), more[i].begin(), more[i].end());
      if (more[i].empty()) {
        EXPECT_TRUE(logits[i].empty());
      } else {
        expect_whole(logits[i], sequences[i]);
      }
    }
  };
  append({tokens(5, 1), tokens(23, 2), {}});
  append({tokens(1, 3), tokens(1, 4), tokens(2, 5)});
  decoder.clear(1);
  sequences[1].clear();
  append({tokens(1, 6), tokens(3, 7), {}});
  append({tokens(1, 8), {}, tokens(30, 9)});
  append({tokens(2, 1), tokens(1, 1), tokens(1, 1)});
  EXPECT_EQ(decoder.length(1), 4);
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderOf, ::testing::ValuesIn(families()), [](const auto& it) {
  std::string name = it.param.name;
  std::ranges::replace(name, ' ', '_');
  return name;
});

}  // namespace
}  // namespace braid
