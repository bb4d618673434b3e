#include "state/export_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "hugging_face/model_config.h"
#include "state/hugging_face_source.h"
#include "support/model_state.h"
#include "support/small_model.h"
#include "support/tensor_bytes.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

ModelSpec small_llama(bool qkv_bias, bool tied) {
  return {.layers = 2,
          .width = 20,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 6,
          .ffn = 28,
          .vocabulary = 50,
          .max_positions = 64,
          .tied_embeddings = tied,
          .qkv_bias = qkv_bias,
          .rope_theta = 1234.5,
          .norm_epsilon = 3e-6};
}

ModelSpec small_mixtral() {
  ModelSpec model = small_llama(false, false);
  model.layers = LayerPattern(2, {.feed_forward = &kMoeBlock});
  model.ffn = 0;
  model.experts = 3;
  model.experts_per_token = 2;
  model.expert_ffn = 10;
  return model;
}

ModelSpec small_deepseek() {
  ModelSpec model = small_mixtral();
  model.layers = LayerPattern::parse("mla+mlp mla+moe");
  model.ffn = 28;
  model.kv_heads = 0;
  model.head_size = 0;
  model.kv_lora_rank = 7;
  model.qk_nope_head_dim = 3;
  model.qk_rope_head_dim = 4;
  model.v_head_dim = 5;
  model.experts = 4;
  model.shared_ffn = 20;
  model.router = {.sigmoid = true, .bias = true};
  model.norm_epsilon = 1e-6;
  return model;
}

ModelSpec small_nemotron_h() {
  ModelSpec model = small_llama(false, false);
  model.style = kNemotronHStyle;
  model.layers = LayerPattern::parse("M-*E");
  model.mamba_num_heads = 4;
  model.mamba_head_dim = 3;
  model.ssm_state_size = 5;
  model.mamba_n_groups = 2;
  model.conv_kernel = 4;
  model.mamba_chunk_size = 8;
  model.experts = 3;
  model.experts_per_token = 2;
  model.expert_ffn = 10;
  model.shared_ffn = 6;
  model.router = {.sigmoid = true, .bias = true};
  return model;
}

std::vector<ModelSpec> models() {
  ModelSpec untied = small_gpt2();
  untied.tied_embeddings = false;
  ModelSpec with_mtp = small_deepseek();
  with_mtp.mtp_depth = 2;
  return {small_llama(false, false),
          small_llama(false, true),
          small_llama(true, true),
          small_gpt2(),
          untied,
          small_mixtral(),
          small_deepseek(),
          with_mtp,
          small_nemotron_h()};
}

std::vector<float> read_values(const HfTensorFolder& files, const std::string& name) {
  const HfTensorFolder::Place place = files.find(name).value();
  const std::vector<std::byte> bytes = tensor_bytes(*place.file, *place.entry);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class ExportWeights : public testing::Test {
 protected:
  /// Fresh weights, with biases and norms that are not all alike.
  static ModelState state_of(const ParameterLayout& layout, const ModelSpec& model) {
    ModelState state = initial_state(layout, model, 3);
    for (const Parameter& parameter : layout.parameters) {
      if (parameter.shape.rank() == 1) {
        float value = 0.5F;
        for (float& element : elements_of(layout, parameter.name, state.weights)) {
          element += value += 0.0078125F;
        }
      }
    }
    return state;
  }

  ExportSummary save(const ModelSpec& model, const ExportOptions& options = {}) {
    const ParameterLayout layout = make_parameter_layout(model_parameters(model));
    return export_weights(state_of(layout, model), layout, model, folder_ / "out", options);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  TempFolder folder_;
};

// As one matrix times (normed token, normed hidden state), the order of DeepSeek-V3's files; the
// shared tables are repeated.
TEST_F(ExportWeights, ProjectionsOfMultiTokenPredictionAreOneTensor) {
  ModelSpec model = small_deepseek();
  model.mtp_depth = 1;
  save(model);
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  ModelState state = state_of(layout, model);
  const auto tokens = elements_of(layout, "mtp.0.embedding_projection.weight", state.weights);
  const auto hidden = elements_of(layout, "mtp.0.hidden_projection.weight", state.weights);
  const HfTensorFolder files(folder_ / "out");
  const auto both = read_values(files, "model.layers.2.eh_proj.weight");
  ASSERT_EQ(both.size(), 800u);
  for (size_t i = 0; i < both.size(); ++i) {
    const size_t row = i / 40;
    const size_t column = i % 40;
    ASSERT_EQ(both[i], column < 20 ? tokens[row * 20 + column] : hidden[row * 20 + column - 20]);
  }
  EXPECT_EQ(read_values(files, "model.layers.2.shared_head.head.weight"),
            read_values(files, "lm_head.weight"));
  EXPECT_EQ(read_values(files, "model.layers.2.embed_tokens.weight"),
            read_values(files, "model.embed_tokens.weight"));
  EXPECT_THAT(read_text_file(folder_ / "out/config.json", 1 << 20),
              HasSubstr("\"num_nextn_predict_layers\": 1"));
}

TEST_F(ExportWeights, ImportedAgainIsBitwiseTheSame) {
  for (const ModelSpec& model : models()) {
    const ParameterLayout layout = make_parameter_layout(model_parameters(model));
    for (const int64_t max_shard_bytes : {int64_t{1} << 30, int64_t{5000}}) {
      save(model, {.max_shard_bytes = max_shard_bytes});
      const std::string config = folder_ / "out/config.json";
      EXPECT_EQ(parse_hf_config(read_text_file(config, 1 << 20), config).model.layers,
                model.layers);
      const HfTensorFolder files(folder_ / "out");
      EXPECT_EQ(files.num_files() > 1, max_shard_bytes == 5000);
      const HuggingFaceSource source(files, layout, model);
      EXPECT_EQ(whole_state(layout, source).weights, state_of(layout, model).weights);
      std::filesystem::remove_all(folder_ / "out");
    }
  }
}

TEST_F(ExportWeights, FusedExpertsImportedAgainAreBitwiseTheSame) {
  for (const ModelSpec& model : {small_mixtral(), small_deepseek(), small_llama(false, true)}) {
    const ParameterLayout layout = make_parameter_layout(model_parameters(model));
    for (const int64_t max_shard_bytes : {int64_t{1} << 30, int64_t{5000}}) {
      const ExportSummary summary =
          save(model, {.max_shard_bytes = max_shard_bytes, .experts = HfExperts::kFused});
      const HfTensorFolder files(folder_ / "out");
      EXPECT_EQ(files.names().size(), summary.num_tensors);
      const HuggingFaceSource source(files, layout, model);
      EXPECT_EQ(whole_state(layout, source).weights, state_of(layout, model).weights);
      std::filesystem::remove_all(folder_ / "out");
    }
  }
}

// Expert by expert, the gate's rows in front; read without our reader of folders.
TEST_F(ExportWeights, FusedExpertsLieAsInTransformers) {
  const ModelSpec model = small_mixtral();
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  save(model, {.experts = HfExperts::kFused});
  const SafetensorsFile file(folder_ / "out/model.safetensors");
  ModelState state = state_of(layout, model);
  const auto expect_row = [](const std::vector<std::byte>& theirs, size_t row,
                             std::span<const float> expected) {
    const size_t bytes = expected.size_bytes();
    EXPECT_TRUE(
        std::ranges::equal(std::span(theirs).subspan(row * bytes, bytes), std::as_bytes(expected)))
        << "row " << row;
  };
  const auto gate_up = tensor_bytes(
      file, file.entry("model.layers.1.mlp.experts.gate_up_proj", DType::kF32, {3, 20, 20}));
  const auto down = tensor_bytes(
      file, file.entry("model.layers.1.mlp.experts.down_proj", DType::kF32, {3, 20, 10}));
  const auto fc1 = elements_of(layout, "layers.1.moe.fc1.weight", state.weights);
  const auto fc2 = elements_of(layout, "layers.1.moe.fc2.weight", state.weights);
  for (size_t expert = 0; expert < 3; ++expert) {
    for (size_t i = 0; i < 10; ++i) {
      expect_row(gate_up, 20 * expert + i, fc1.subspan((20 * expert + 2 * i) * 20, 20));
      expect_row(gate_up, 20 * expert + 10 + i, fc1.subspan((20 * expert + 2 * i + 1) * 20, 20));
    }
    for (size_t i = 0; i < 20; ++i) {
      expect_row(down, 20 * expert + i, fc2.subspan((20 * expert + i) * 10, 10));
    }
  }
  EXPECT_NO_THROW(file.entry("model.layers.1.mlp.gate.weight"));
}

TEST_F(ExportWeights, HalfOfTheBytesInBfloat16) {
  const ModelSpec model = small_llama(true, false);
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const ExportSummary summary = save(model, {.dtype = DType::kBF16});
  EXPECT_EQ(summary.size_bytes, 2 * num_parameters(model));
  const HfTensorFolder files(folder_ / "out");
  const ModelState read = whole_state(layout, HuggingFaceSource(files, layout, model));
  const ModelState written = state_of(layout, model);
  for (size_t unit = 0; unit < read.weights.size(); ++unit) {
    for (size_t i = 0; i < read.weights[unit].size(); ++i) {
      ASSERT_EQ(read.weights[unit][i], BFloat16(written.weights[unit][i]));
    }
  }
}

// One element of each kind of place, read from the file without our reader of folders.
TEST_F(ExportWeights, ElementsLieWhereTheirModelsWantThem) {
  const ModelSpec model = small_gpt2();
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  save(model);
  const SafetensorsFile file(folder_ / "out/model.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ModelState state = state_of(layout, model);
  const auto ours = elements_of(layout, "layers.1.mlp.fc1.weight", state.weights);
  const auto theirs =
      tensor_bytes(file, file.entry("transformer.h.1.mlp.c_fc.weight", DType::kF32, {20, 36}));
  float value = 0;  // row 2 = input 2, column 7 = output 7
  std::memcpy(&value, theirs.data() + (2 * 36 + 7) * sizeof(float), sizeof(float));
  EXPECT_EQ(value, ours[7 * 20 + 2]);
}

TEST_F(ExportWeights, GateAndUpComeApart) {
  const ModelSpec model = small_llama(false, false);
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  save(model);
  const SafetensorsFile file(folder_ / "out/model.safetensors");
  ModelState state = state_of(layout, model);
  const auto ours = elements_of(layout, "layers.1.mlp.fc1.weight", state.weights);
  for (const bool is_up : {false, true}) {
    const auto theirs = tensor_bytes(
        file, file.entry(fmt::format("model.layers.1.mlp.{}_proj.weight", is_up ? "up" : "gate"),
                         DType::kF32, {28, 20}));
    for (size_t row = 0; row < 28; ++row) {
      const auto expected = ours.subspan((2 * row + (is_up ? 1 : 0)) * 20, 20);
      EXPECT_TRUE(std::ranges::equal(
          std::span(theirs).subspan(row * 20 * sizeof(float), expected.size_bytes()),
          std::as_bytes(expected)))
          << (is_up ? "up" : "gate") << " row " << row;
    }
  }
}

TEST_F(ExportWeights, RefusesAFolderThatIsTakenAndLeavesNothing) {
  std::filesystem::create_directories(folder_ / "out/sub");
  EXPECT_EQ(
      message_of<ConfigError>([&] { save(small_gpt2()); }),
      fmt::format("'{}' exists already; give the name of a folder that does not", folder_ / "out"));
  std::filesystem::remove(folder_ / "out/sub");
  save(small_gpt2());  // an empty one is free
  EXPECT_THAT(names(), testing::ElementsAre("out"));
}

TEST_F(ExportWeights, RefusesModelsThatNoClassComputes) {
  ModelSpec model = small_gpt2();
  model.kv_heads = 1;
  EXPECT_THAT(message_of<ConfigError>([&] { save(model); }),
              HasSubstr("model.kv_heads = 1: a GPT2LMHeadModel has as many as model.heads = 2"));
  EXPECT_TRUE(names().empty());
}

TEST_F(ExportWeights, AFullDiskLeavesNothing) {
  {
    const FileSizeLimit full_disk(20000);
    EXPECT_THAT(message_of<DataError>([&] { save(small_gpt2()); }), HasSubstr("File too large"));
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(ExportWeights, AnErrorOfTheSourceLeavesNothing) {
  class Failing final : public StateSource {
   public:
    void read(StatePart, size_t unit, int64_t, std::span<float>, WorkerPool&) const override {
      if (unit > 0) {
        throw DeviceError("the device is gone");
      }
    }
  };
  const ModelSpec model = small_gpt2();
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  EXPECT_EQ(message_of<DeviceError>([&] {
              export_weights(Failing(), layout, model, folder_ / "out", {.max_shard_bytes = 4000});
            }),
            "the device is gone");
  EXPECT_TRUE(names().empty());
}

}  // namespace
}  // namespace braid
