#include "state/import_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <optional>

#include "base/errors.h"
#include "base/expect_error.h"
#include "checkpoint/folder_lock.h"
#include "config/load.h"
#include "generate/generate.h"
#include "state/checkpointing.h"
#include "support/hugging_face_model.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ImportWeights : public testing::Test {
 protected:
  ImportSummary run_import(const TinyHfModel& model) const {
    model.write(folder_ / "hf", DType::kBF16);
    return import_weights(folder_ / "hf", folder_ / "c");
  }

  TempFolder folder_;
};

TEST_F(ImportWeights, MakesACheckpointOfStepZero) {
  for (const TinyHfModel& theirs :
       {TinyHfModel::make_llama(true), TinyHfModel::make_qwen2(), TinyHfModel::make_gpt2()}) {
    const ImportSummary summary = run_import(theirs);
    EXPECT_EQ(summary.checkpoint, folder_ / "c/step_00000000");
    const LoadedCheckpoint checkpoint(summary.checkpoint);
    EXPECT_EQ(checkpoint.state().step, 0);
    EXPECT_EQ(checkpoint.state().consumed_samples, 0);
    const RunConfig config = parse_config(checkpoint.state().config, "state.json");
    const ModelSpec model = checkpointed_model(checkpoint, config);
    EXPECT_EQ(model, summary.model);
    const ParameterLayout layout = make_parameter_layout(model_parameters(model));
    const CheckpointedState state(checkpoint, layout, model);
    EXPECT_TRUE(state.is_zero(StatePart::kExpAvg));
    EXPECT_TRUE(state.is_zero(StatePart::kExpAvgSq));
    const std::vector<int32_t> context = {7, 0, 10};
    const std::vector<float> logits =
        Generator(model, state, config.train.sequence, {.threads = 1}).next_logits(context);
    const std::vector<double> expected = theirs.logits(context);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(logits[i], expected[i], 1e-5);  // f32 and f64, see hugging_face_source_test.cpp
    }
    std::filesystem::remove_all(folder_ / "c");
  }
}

TEST_F(ImportWeights, SaysWhatItDoesNotUse) {
  EXPECT_THAT(run_import(TinyHfModel::make_gpt2()).ignored, ElementsAre("attn_pdrop = 0.1"));
}

TEST_F(ImportWeights, CarriesTheTokenizerThatLiesThere) {
  std::filesystem::create_directories(folder_ / "hf");
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    write_test_file((folder_ / "hf/") + name, name);
    const ImportSummary summary = run_import(TinyHfModel::make_llama(false));
    const LoadedCheckpoint checkpoint(summary.checkpoint);
    const std::string tokenizer = parse_config(checkpoint.state().config, "").data.tokenizer;
    EXPECT_EQ(tokenizer, (folder_ / "c/hugging_face/") + name);
    EXPECT_EQ(tokenizer, summary.tokenizer);
    EXPECT_EQ(read_text_file(tokenizer, 100), name);
    EXPECT_THAT(summary.carried,
                testing::IsSupersetOf({std::string("config.json"), std::string(name)}));
    std::filesystem::remove_all(folder_ / "c");
  }
}

TEST_F(ImportWeights, RefusesAFolderWithCheckpoints) {
  const TinyHfModel model = TinyHfModel::make_llama(false);
  run_import(model);
  EXPECT_EQ(message_of<ConfigError>([&] { run_import(model); }),
            fmt::format("'{}' already has the checkpoint {}; give another folder", folder_ / "c",
                        folder_ / "c/step_00000000"));
}

TEST_F(ImportWeights, AFolderThatIsNoneIsNamedAndNothingIsMade) {
  EXPECT_THAT(message_of<DataError>([&] { import_weights(folder_ / "absent", folder_ / "c"); }),
              HasSubstr("absent/config.json"));
  TinyHfModel bad = TinyHfModel::make_llama(false);
  bad.tensors.erase("model.norm.weight");
  EXPECT_THAT(message_of<DataError>([&] { run_import(bad); }), HasSubstr("model.norm.weight"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "c"));
}

TEST_F(ImportWeights, RefusesWeightsThatAreNotFinite) {
  TinyHfModel bad = TinyHfModel::make_gpt2();
  bad.tensors.at("transformer.h.1.ln_2.bias").values[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(message_of<DataError>([&] { run_import(bad); }),
              HasSubstr("tensor \"layers.1.mlp_norm.bias\" has NaN at element 5"));
  EXPECT_EQ(find_latest_checkpoint(folder_ / "c"), std::nullopt);
}

TEST_F(ImportWeights, LocksItsFolder) {
  std::filesystem::create_directories(folder_ / "c");
  const FolderLock lock("checkpoint.folder", folder_ / "c");
  EXPECT_THAT(message_of<ConfigError>([&] { run_import(TinyHfModel::make_gpt2()); }),
              HasSubstr("/c\": process "));
  EXPECT_EQ(find_latest_checkpoint(folder_ / "c"), std::nullopt);
}

}  // namespace
}  // namespace braid
