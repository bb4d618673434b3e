#include "hugging_face/tensor_names.h"
#include "model/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/expect_error.h"
#include "model/parameters.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

/// "name shape" of each tensor.
std::vector<std::string> listed(const std::string& preset) {
  std::vector<std::string> list;
  for (const HfTensor& tensor : hf_tensors(find_preset(preset).spec)) {
    list.push_back(tensor.name + " " + to_string(tensor.shape));
  }
  return list;
}

// Of the files that were published under these names.
TEST(HfTensors, Llama8bHasItsNamesAndShapes) {
  const std::vector<std::string> list = listed("llama-8b");
  EXPECT_EQ(list.size(), 291u);
  EXPECT_THAT(list, IsSupersetOf({"model.embed_tokens.weight [128256,4096]",
                                  "model.layers.0.input_layernorm.weight [4096]",
                                  "model.layers.0.self_attn.q_proj.weight [4096,4096]",
                                  "model.layers.0.self_attn.k_proj.weight [1024,4096]",
                                  "model.layers.31.self_attn.v_proj.weight [1024,4096]",
                                  "model.layers.31.self_attn.o_proj.weight [4096,4096]",
                                  "model.layers.31.post_attention_layernorm.weight [4096]",
                                  "model.layers.31.mlp.gate_proj.weight [14336,4096]",
                                  "model.layers.31.mlp.up_proj.weight [14336,4096]",
                                  "model.layers.31.mlp.down_proj.weight [4096,14336]",
                                  "model.norm.weight [4096]", "lm_head.weight [128256,4096]"}));
}

// A window is no tensor.
TEST(HfTensors, WindowsAreOfTheClassesThatHaveThem) {
  EXPECT_EQ(listed("mistral-7b").size(), 291u);
  const auto class_of = [](const char* preset, const char* pattern) {
    ModelSpec model = find_preset(preset).spec;
    model.layers = LayerPattern::parse(pattern);
    model.sliding_window = 8;
    return std::string(hf_class(model).architecture);
  };
  EXPECT_EQ(class_of("llama-8b", "attention+mlp*3"), "LlamaForCausalLM");
  EXPECT_EQ(class_of("llama-8b", "sliding+mlp*3"), "MistralForCausalLM");
  EXPECT_EQ(class_of("llama-8b", "attention+mlp sliding+mlp"), "MinistralForCausalLM");
  EXPECT_EQ(class_of("qwen2.5-0.5b", "attention+mlp"), "Qwen2ForCausalLM");
  EXPECT_EQ(class_of("qwen2.5-0.5b", "sliding+mlp"), "Qwen2ForCausalLM");
  EXPECT_EQ(class_of("qwen3-0.6b", "attention+mlp sliding+mlp"), "Qwen3ForCausalLM");
}

TEST(HfTensors, Phi3JoinsMatrices) {
  EXPECT_THAT(listed("phi-4"),
              IsSupersetOf({"model.layers.0.input_layernorm.weight [5120]",
                            "model.layers.39.self_attn.qkv_proj.weight [7680,5120]",
                            "model.layers.39.self_attn.o_proj.weight [5120,5120]",
                            "model.layers.39.mlp.gate_up_proj.weight [17920,5120]",
                            "model.layers.39.mlp.down_proj.weight [5120,17920]",
                            "lm_head.weight [100352,5120]"}));
  std::vector<int64_t> halves;  // the first rows, theirs and ours
  for (const HfTensor& tensor : hf_tensors(find_preset("phi-4").spec)) {
    if (tensor.name == "model.layers.3.mlp.gate_up_proj.weight") {
      EXPECT_EQ(tensor.whole_shape(), Shape({2 * 17920, 5120}));
      halves.insert(halves.end(), {tensor.theirs_row, tensor.first_row});
    }
  }
  EXPECT_THAT(halves, testing::ElementsAre(0, 0, 17920, 1));
  ModelSpec model = find_preset("phi-4").spec;
  model.qkv_bias = true;
  EXPECT_EQ(message_of<ConfigError>([&] { hf_tensors(model); }),
            "model.qkv_bias = true: a Phi3ForCausalLM has no biases");
  model = find_preset("phi-4").spec;
  model.rope_scaling = {.type = RopeType::kLinear, .factor = 2};
  EXPECT_EQ(message_of<ConfigError>([&] { hf_tensors(model); }),
            "model.rope_type = \"linear\": a Phi3ForCausalLM has \"default\" or \"longrope\" only");
  model = find_preset("llama-1b").spec;
  model.partial_rotary_factor = 0.5;
  EXPECT_EQ(message_of<ConfigError>([&] { hf_tensors(model); }),
            "model.partial_rotary_factor = 0.5: a LlamaForCausalLM rotates whole heads; a "
            "Phi3ForCausalLM (model.family = \"phi3\") has the key");
}

TEST(HfTensors, GemmaHasNormsBehindBlocks) {
  const std::vector<std::string> list = listed("gemma-3-1b");
  EXPECT_EQ(list.size(), 26u * 13 + 2);
  EXPECT_THAT(list, IsSupersetOf({"model.embed_tokens.weight [262144,1152]",
                                  "model.layers.25.input_layernorm.weight [1152]",
                                  "model.layers.25.self_attn.q_proj.weight [1024,1152]",
                                  "model.layers.25.self_attn.q_norm.weight [256]",
                                  "model.layers.25.post_attention_layernorm.weight [1152]",
                                  "model.layers.25.pre_feedforward_layernorm.weight [1152]",
                                  "model.layers.25.mlp.down_proj.weight [1152,6912]",
                                  "model.layers.25.post_feedforward_layernorm.weight [1152]",
                                  "model.norm.weight [1152]"}));
  const auto fault = [](const char* preset, auto change) {
    ModelSpec model = find_preset(preset).spec;
    change(model);
    return message_of<ConfigError>([&] { hf_tensors(model); });
  };
  EXPECT_EQ(fault("gemma-3-1b", [](ModelSpec& m) { m.norm_offset = 0; }),
            "model.norm_offset = 0: a Gemma3ForCausalLM has 1 only");
  EXPECT_EQ(fault("gemma-3-1b", [](ModelSpec& m) { m.scale_embedding = false; }),
            "model.scale_embedding = false: a Gemma3ForCausalLM has true only");
  EXPECT_EQ(fault("gemma-3-4b", [](ModelSpec& m) { m.rope_local_base_freq = 0; }),
            "model.rope_local_base_freq = 0: a Gemma3ForCausalLM has another base, and no scaling, "
            "in layers with windows only");
  EXPECT_EQ(fault("llama-1b", [](ModelSpec& m) { m.post_norms = true; }),
            "model.post_norms = true: a LlamaForCausalLM has false only");
  EXPECT_EQ(fault("llama-1b", [](ModelSpec& m) { m.query_pre_attn_scalar = 3; }),
            "model.query_pre_attn_scalar = 3: a LlamaForCausalLM has 0 only");
}

TEST(HfTensors, QwenHasBiasesAndATiedHead) {
  const std::vector<std::string> list = listed("qwen2.5-0.5b");
  EXPECT_EQ(list.size(), 290u);
  EXPECT_THAT(list, IsSupersetOf({"model.layers.23.self_attn.q_proj.bias [896]",
                                  "model.layers.23.self_attn.k_proj.bias [128]",
                                  "model.layers.23.self_attn.v_proj.bias [128]"}));
  EXPECT_THAT(list, Not(testing::Contains(HasSubstr("lm_head"))));
}

TEST(HfTensors, Gpt2HasItsNamesAndShapes) {
  const std::vector<std::string> list = listed("gpt2-124m");
  EXPECT_EQ(list.size(), 148u);
  EXPECT_THAT(list, IsSupersetOf(
                        {"transformer.wte.weight [50257,768]", "transformer.wpe.weight [1024,768]",
                         "transformer.h.0.ln_1.weight [768]", "transformer.h.0.ln_1.bias [768]",
                         "transformer.h.0.attn.c_attn.weight [768,2304]",
                         "transformer.h.0.attn.c_attn.bias [2304]",
                         "transformer.h.11.attn.c_proj.weight [768,768]",
                         "transformer.h.11.mlp.c_fc.weight [768,3072]",
                         "transformer.h.11.mlp.c_proj.weight [3072,768]",
                         "transformer.h.11.mlp.c_proj.bias [768]", "transformer.ln_f.bias [768]"}));
}

TEST(HfTensors, HybridsHaveOneBlockPerLayer) {
  const std::vector<std::string> list = listed("nemotron-h-8b");
  EXPECT_EQ(list.size(), 1u + 24 * 9 + 4 * 5 + 24 * 3 + 2);
  EXPECT_THAT(
      list, IsSupersetOf(
                {"backbone.embeddings.weight [131072,4096]", "backbone.layers.0.norm.weight [4096]",
                 "backbone.layers.0.mixer.in_proj.weight [18560,4096]",
                 "backbone.layers.0.mixer.conv1d.weight [10240,1,4]",
                 "backbone.layers.0.mixer.conv1d.bias [10240]",
                 "backbone.layers.0.mixer.dt_bias [128]", "backbone.layers.0.mixer.A_log [128]",
                 "backbone.layers.0.mixer.D [128]", "backbone.layers.0.mixer.norm.weight [8192]",
                 "backbone.layers.0.mixer.out_proj.weight [4096,8192]",
                 "backbone.layers.1.mixer.up_proj.weight [21504,4096]",
                 "backbone.layers.1.mixer.down_proj.weight [4096,21504]",
                 "backbone.layers.7.mixer.k_proj.weight [1024,4096]",
                 "backbone.layers.7.mixer.o_proj.weight [4096,4096]",
                 "backbone.norm_f.weight [4096]", "lm_head.weight [131072,4096]"}));
}

TEST(HfTensors, ExpertsOfHybridsHaveNoGate) {
  const std::vector<std::string> list = listed("nemotron-3-nano");
  EXPECT_EQ(list.size(), 1u + 23 * 9 + 6 * 5 + 23 * (5 + 2 * 128) + 2);
  EXPECT_THAT(list,
              IsSupersetOf({"backbone.layers.1.norm.weight [2688]",
                            "backbone.layers.1.mixer.gate.weight [128,2688]",
                            "backbone.layers.1.mixer.gate.e_score_correction_bias [128]",
                            "backbone.layers.51.mixer.experts.127.up_proj.weight [1856,2688]",
                            "backbone.layers.51.mixer.experts.127.down_proj.weight [2688,1856]",
                            "backbone.layers.51.mixer.shared_experts.up_proj.weight [3712,2688]",
                            "backbone.layers.51.mixer.shared_experts.down_proj.weight [2688,3712]",
                            "backbone.layers.5.mixer.k_proj.weight [256,2688]"}));
  ModelSpec model = find_preset("nemotron-3-nano").spec;
  std::vector<std::string> fused;
  for (const HfTensor& tensor : hf_tensors(model, HfExperts::kFused)) {
    fused.push_back(tensor.name + " " + to_string(tensor.whole_shape()));
  }
  EXPECT_THAT(fused, IsSupersetOf({"model.embeddings.weight [131072,2688]",
                                   "model.layers.1.mixer.experts.up_proj [128,1856,2688]",
                                   "model.layers.1.mixer.experts.down_proj [128,2688,1856]"}));
  model.router.bias = false;
  EXPECT_EQ(message_of<ConfigError>([&] { hf_tensors(model); }),
            "model.router_bias = false: a NemotronHForCausalLM has true only");
  model.router.bias = true;
  model.router.logit_bias = true;
  EXPECT_EQ(message_of<ConfigError>([&] { hf_tensors(model); }),
            "model.router_logit_bias = true: a NemotronHForCausalLM has false only");
  model.router.logit_bias = false;
  model.shared_ffn = 0;
  EXPECT_EQ(message_of<ConfigError>([&] { hf_tensors(model); }),
            "model.shared_ffn = 0: a NemotronHForCausalLM has a positive number only");
}

TEST(HfTensors, ExpertsHaveTheirNamesAndShapes) {
  const std::vector<std::string> qwen = listed("qwen3-30b-a3b");
  EXPECT_EQ(qwen.size(), 18867u);
  EXPECT_THAT(qwen, IsSupersetOf({"model.layers.0.self_attn.q_norm.weight [128]",
                                  "model.layers.0.self_attn.k_norm.weight [128]",
                                  "model.layers.47.mlp.gate.weight [128,2048]",
                                  "model.layers.47.mlp.experts.127.gate_proj.weight [768,2048]",
                                  "model.layers.47.mlp.experts.127.up_proj.weight [768,2048]",
                                  "model.layers.47.mlp.experts.127.down_proj.weight [2048,768]"}));
  EXPECT_THAT(listed("mixtral-8x7b"),
              IsSupersetOf({"model.layers.31.block_sparse_moe.gate.weight [8,4096]",
                            "model.layers.31.block_sparse_moe.experts.7.w1.weight [14336,4096]",
                            "model.layers.31.block_sparse_moe.experts.7.w2.weight [4096,14336]",
                            "model.layers.31.block_sparse_moe.experts.7.w3.weight [14336,4096]"}));
  EXPECT_THAT(listed("qwen1.5-moe-a2.7b"),
              IsSupersetOf({"model.layers.0.self_attn.k_proj.bias [2048]",
                            "model.layers.23.mlp.gate.weight [60,2048]",
                            "model.layers.23.mlp.experts.59.up_proj.weight [1408,2048]",
                            "model.layers.23.mlp.shared_expert.gate_proj.weight [5632,2048]",
                            "model.layers.23.mlp.shared_expert.up_proj.weight [5632,2048]",
                            "model.layers.23.mlp.shared_expert.down_proj.weight [2048,5632]",
                            "model.layers.23.mlp.shared_expert_gate.weight [1,2048]"}));
  EXPECT_THAT(listed("olmoe-1b-7b"),
              IsSupersetOf({"model.layers.15.self_attn.q_norm.weight [2048]",
                            "model.layers.15.mlp.experts.63.down_proj.weight [2048,1024]"}));
}

TEST(HfTensors, DeepseekHasItsNamesAndShapes) {
  const std::vector<std::string> lite = listed("deepseek-v2-lite");
  EXPECT_EQ(lite.size(), 5291u);
  EXPECT_THAT(lite,
              IsSupersetOf({"model.layers.0.mlp.gate_proj.weight [10944,2048]",
                            "model.layers.0.self_attn.q_proj.weight [3072,2048]",
                            "model.layers.26.self_attn.kv_a_proj_with_mqa.weight [576,2048]",
                            "model.layers.26.self_attn.kv_a_layernorm.weight [512]",
                            "model.layers.26.self_attn.kv_b_proj.weight [4096,512]",
                            "model.layers.26.self_attn.o_proj.weight [2048,2048]",
                            "model.layers.26.mlp.experts.63.down_proj.weight [2048,1408]",
                            "model.layers.26.mlp.shared_experts.up_proj.weight [2816,2048]"}));
  EXPECT_THAT(listed("deepseek-v3"),
              IsSupersetOf({"model.layers.2.mlp.down_proj.weight [7168,18432]",
                            "model.layers.60.self_attn.q_a_proj.weight [1536,7168]",
                            "model.layers.60.self_attn.q_a_layernorm.weight [1536]",
                            "model.layers.60.self_attn.q_b_proj.weight [24576,1536]",
                            "model.layers.60.self_attn.kv_b_proj.weight [32768,512]",
                            "model.layers.60.mlp.gate.weight [256,7168]",
                            "model.layers.60.mlp.gate.e_score_correction_bias [256]",
                            "model.layers.60.mlp.shared_experts.down_proj.weight [7168,2048]"}));
}

/// How often each row of our parameters is in a tensor.
std::map<std::string, std::vector<int>> rows_of(const std::vector<HfTensor>& tensors) {
  std::map<std::string, std::vector<int>> rows;
  for (const HfTensor& tensor : tensors) {
    std::vector<int>& counts = rows[tensor.parameter];
    const int64_t last = tensor.first_row + (tensor.num_rows() - 1) * tensor.row_stride;
    counts.resize(std::max(counts.size(), static_cast<size_t>(last + 1)));
    for (int64_t row = tensor.first_row; row <= last; row += tensor.row_stride) {
      ++counts[static_cast<size_t>(row)];
    }
  }
  return rows;
}

TEST(HfTensors, CoverEveryParameterOnce) {
  for (const ModelPreset& preset : model_presets()) {
    ModelSpec spec = preset.spec;
    spec.layers = spec.layers.sample(3);
    for (const HfExperts experts : {HfExperts::kSeparate, HfExperts::kFused}) {
      const auto rows = rows_of(hf_tensors(spec, experts));
      const std::vector<Parameter> parameters = model_parameters(spec);
      EXPECT_EQ(rows.size(), parameters.size());
      for (const Parameter& parameter : parameters) {
        const int64_t expected = parameter.vocabulary_rows ? spec.vocabulary : parameter.shape[0];
        EXPECT_EQ(rows.at(parameter.name), std::vector<int>(static_cast<size_t>(expected), 1))
            << preset.name << " " << parameter.name;
      }
    }
  }
}

TEST(HfTensors, FusedExpertsAreRowsOfTwoTensors) {
  for (const char* const preset : {"mixtral-8x7b", "qwen3-30b-a3b", "olmoe-1b-7b", "deepseek-v3"}) {
    ModelSpec spec = find_preset(preset).spec;
    spec.layers = spec.layers.sample(3);
    std::map<std::string, int64_t> theirs;  // rows so far of each tensor in parts
    std::map<std::string, Shape> shapes;
    for (const HfTensor& tensor : hf_tensors(spec, HfExperts::kFused)) {
      if (tensor.whole.rank() > 0) {
        EXPECT_EQ(tensor.theirs_row, theirs[tensor.name]) << tensor.name;
        theirs[tensor.name] += tensor.num_rows();
        shapes[tensor.name] = tensor.whole;
      }
      EXPECT_THAT(tensor.name, Not(HasSubstr(".experts.0."))) << preset;
    }
    EXPECT_FALSE(shapes.empty());
    for (const auto& [name, shape] : shapes) {
      EXPECT_EQ(theirs[name], shape[0] * shape[1]) << name;
      const bool is_down = name.ends_with(".mlp.experts.down_proj");
      EXPECT_TRUE(is_down || name.ends_with(".mlp.experts.gate_up_proj")) << name;
      EXPECT_EQ(shape, is_down ? (Shape{spec.experts, spec.width, spec.expert_ffn})
                               : (Shape{spec.experts, 2 * spec.expert_ffn, spec.width}));
    }
  }
}

TEST(HfTensors, NamesTellHowExpertsAreHeld) {
  const std::vector<std::string> fused{"lm_head.weight", "model.layers.1.mlp.experts.gate_up_proj"};
  const std::vector<std::string> separate{"model.layers.1.mlp.experts.0.gate_proj.weight"};
  EXPECT_EQ(experts_of_files(fused), HfExperts::kFused);
  EXPECT_EQ(experts_of_files(separate), HfExperts::kSeparate);
}

// Four rows of three elements on each side: gate is rows 0, 2, 4, 6 of ours.
TEST(HfTensors, GateAndUpTakeTurnsInOurRows) {
  ModelSpec model = find_preset("llama-8b").spec;
  model.width = 3;
  model.ffn = 4;
  for (const HfTensor& tensor : hf_tensors(model)) {
    if (tensor.parameter != "layers.1.mlp.fc1.weight") {
      continue;
    }
    const bool is_up = tensor.name == "model.layers.1.mlp.up_proj.weight";
    EXPECT_TRUE(is_up || tensor.name == "model.layers.1.mlp.gate_proj.weight") << tensor.name;
    EXPECT_EQ(piece_range(tensor), (PieceRange{is_up ? 3 : 0, 4, 3})) << tensor.name;
    EXPECT_EQ(tensor.pitch(), 6) << tensor.name;
  }
}

TEST(HfTensors, RefuseModelsWithoutAClass) {
  ModelSpec model = find_preset("gpt2-124m").spec;
  model.head_size = 32;
  EXPECT_THAT(message_of<ConfigError>([&] { hf_tensors(model); }),
              HasSubstr("model.head_size = 32: a GPT2LMHeadModel has model.width / model.heads = "
                        "768 / 12"));
  model = find_preset("gpt2-124m").spec;
  model.kv_heads = 4;
  EXPECT_THAT(message_of<ConfigError>([&] { hf_tensors(model); }), HasSubstr("model.kv_heads = 4"));
  model = find_preset("gpt2-124m").spec;
  model.qkv_bias = false;
  EXPECT_THAT(message_of<ConfigError>([&] { hf_tensors(model); }),
              HasSubstr("model.qkv_bias = false"));
  model = find_preset("llama-1b").spec;
  model.layers = LayerPattern::parse("attention mlp");
  EXPECT_EQ(
      message_of<ConfigError>([&] { hf_tensors(model); }),
      "model.pattern = \"attention mlp\": Hugging Face has no class that braid knows for such a "
      "model; those of family \"llama\" have layers \"attention+mlp\" or \"sliding+mlp\" or "
      "\"attention+moe\" or \"mla+moe\" only");
  model = find_preset("mixtral-8x7b").spec;
  model.layers = LayerPattern::parse("sliding+moe*2");
  EXPECT_THAT(message_of<ConfigError>([&] { hf_tensors(model); }),
              HasSubstr("\"sliding+moe*2\": Hugging Face has no class"));
  model = find_preset("mixtral-8x7b").spec;
  model.shared_ffn = 64;
  EXPECT_EQ(message_of<ConfigError>([&] { hf_tensors(model); }),
            "model.shared_ffn = 64: a MixtralForCausalLM has 0 only");
  model = find_preset("mixtral-8x7b").spec;
  model.router.logit_bias = true;
  EXPECT_EQ(message_of<ConfigError>([&] { hf_tensors(model); }),
            "model.router_logit_bias = true: a MixtralForCausalLM has false only");
  model = find_preset("qwen1.5-moe-a2.7b").spec;
  model.shared_gate = false;
  EXPECT_EQ(message_of<ConfigError>([&] { hf_tensors(model); }),
            "model.shared_gate = false: a Qwen2MoeForCausalLM has true only");
  model.shared_ffn = 0;
  EXPECT_EQ(message_of<ConfigError>([&] { hf_tensors(model); }),
            "model.shared_ffn = 0: a Qwen2MoeForCausalLM has a positive number only");
}

TEST(HfTensors, RefuseWhatDeepseekHasNot) {
  const auto fault_of = [](const std::string& preset, const auto& change) {
    ModelSpec model = find_preset(preset).spec;
    change(model);
    return message_of<ConfigError>([&] { hf_tensors(model); });
  };
  EXPECT_EQ(fault_of("deepseek-v3", [](ModelSpec& m) { m.router.bias = false; }),
            "model.router_bias = false: a DeepseekV3ForCausalLM has true only");
  EXPECT_EQ(fault_of("deepseek-v2", [](ModelSpec& m) { m.router.normalize = true; }),
            "model.router_normalize = true: a DeepseekV2ForCausalLM has false only");
  EXPECT_EQ(fault_of("deepseek-v2", [](ModelSpec& m) { m.shared_ffn = 1000; }),
            "model.shared_ffn = 1000: a DeepseekV2ForCausalLM has multiples of model.expert_ffn = "
            "1536 only");
  EXPECT_EQ(fault_of("deepseek-v2", [](ModelSpec& m) { m.shared_gate = true; }),
            "model.shared_gate = true: a DeepseekV2ForCausalLM has false only");
  EXPECT_EQ(
      fault_of("deepseek-v2",
               [](ModelSpec& m) { m.layers = LayerPattern::parse("mla+moe mla+mlp"); }),
      "model.pattern = \"mla+moe mla+mlp\": a DeepseekV2ForCausalLM has all layers with \"mlp\" "
      "first");
  EXPECT_THAT(fault_of("deepseek-v2", [](ModelSpec& m) { m.norm_epsilon = 1e-5; }),
              HasSubstr("model.norm_epsilon = 1e-05: norms of latents have 1e-06"));
}

TEST(IsHfPredictionLayer, IsBehindTheLastOne) {
  const ModelSpec v3 = find_preset("deepseek-v3").spec;
  EXPECT_TRUE(is_hf_prediction_layer(v3, "model.layers.61.eh_proj.weight"));
  EXPECT_TRUE(is_hf_prediction_layer(v3, "model.layers.62.enorm.weight"));
  EXPECT_FALSE(is_hf_prediction_layer(v3, "model.norm.weight"));
  EXPECT_FALSE(is_hf_prediction_layer(v3, "model.layers.6.eh_proj.weight"));
  EXPECT_FALSE(
      is_hf_prediction_layer(find_preset("llama-8b").spec, "model.layers.32.eh_proj.weight"));
}

// The names and shapes of layer 61 in the published files of DeepSeek-V3.
TEST(HfTensors, DeepseekV3HasLayersOfMultiTokenPrediction) {
  ModelSpec v3 = find_preset("deepseek-v3").spec;
  EXPECT_EQ(stored_mtp_depth(v3, {}), 0);
  v3.mtp_depth = 1;
  std::set<std::string> tensors;
  std::vector<std::string> names;
  for (const HfTensor& tensor : hf_tensors(v3)) {
    tensors.insert(fmt::format("{} {}", tensor.name, to_string(tensor.whole_shape())));
    names.push_back(tensor.name);
  }
  EXPECT_THAT(tensors, IsSupersetOf({"model.layers.61.embed_tokens.weight [129280,7168]",
                                     "model.layers.61.enorm.weight [7168]",
                                     "model.layers.61.hnorm.weight [7168]",
                                     "model.layers.61.eh_proj.weight [7168,14336]",
                                     "model.layers.61.input_layernorm.weight [7168]",
                                     "model.layers.61.self_attn.q_a_proj.weight [1536,7168]",
                                     "model.layers.61.mlp.experts.255.down_proj.weight [7168,2048]",
                                     "model.layers.61.shared_head.norm.weight [7168]",
                                     "model.layers.61.shared_head.head.weight [129280,7168]"}));
  EXPECT_EQ(stored_mtp_depth(v3, names), 1);
  ModelSpec llama = find_preset("llama-8b").spec;
  const size_t count = hf_tensors(llama).size();
  llama.mtp_depth = 1;
  EXPECT_FALSE(has_hf_mtp(llama));
  EXPECT_EQ(hf_tensors(llama).size(), count);
}

TEST(IsHfBuffer, KnowsMasksAndFrequencies) {
  EXPECT_TRUE(is_hf_buffer("h.0.attn.bias"));
  EXPECT_TRUE(is_hf_buffer("transformer.h.3.attn.masked_bias"));
  EXPECT_TRUE(is_hf_buffer("model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(is_hf_buffer("transformer.h.0.attn.c_attn.bias"));
  EXPECT_FALSE(is_hf_buffer("model.layers.0.self_attn.q_proj.bias"));
}

}  // namespace
}  // namespace braid
