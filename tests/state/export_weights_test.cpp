#include "state/export_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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

std::vector<ModelSpec> models() {
  ModelSpec untied = small_gpt2();
  untied.tied_embeddings = false;
  return {small_llama(false, false), small_llama(false, true), small_llama(true, true),
          small_gpt2(), untied};
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

TEST_F(ExportWeights, ImportedAgainIsBitwiseTheSame) {
  for (const ModelSpec& model : models()) {
    const ParameterLayout layout = make_parameter_layout(model_parameters(model));
    for (const int64_t max_shard_bytes : {int64_t{1} << 30, int64_t{5000}}) {
      save(model, {.max_shard_bytes = max_shard_bytes});
      const std::string config = folder_ / "out/config.json";
      EXPECT_EQ(parse_hf_config(read_text_file(config, 1 << 20), config).model.layers, 2);
      const HfTensorFolder files(folder_ / "out");
      EXPECT_EQ(files.num_files() > 1, max_shard_bytes == 5000);
      const HuggingFaceSource source(files, layout, model);
      EXPECT_EQ(whole_state(layout, source).weights, state_of(layout, model).weights);
      std::filesystem::remove_all(folder_ / "out");
    }
  }
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
