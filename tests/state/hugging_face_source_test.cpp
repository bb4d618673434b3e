#include "state/hugging_face_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "generate/generate.h"
#include "hugging_face/model_config.h"
#include "support/hugging_face_model.h"
#include "support/model_state.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// The model in a folder.
struct Imported {
  explicit Imported(const TinyHfModel& theirs, const std::string& folder)
      : model(parse_hf_config(theirs.config, "config.json").model),
        layout(make_parameter_layout(model_parameters(model))),
        files(folder),
        source(files, layout, model) {}

  ModelSpec model;
  ParameterLayout layout;
  HfTensorFolder files;
  HuggingFaceSource source;
};

/// f32 here, f64 there: logits of about 1, made in some hundred roundings of 1e-7. Any two rows,
/// heads or halves exchanged make differences of 0.1.
void expect_same_logits(const TinyHfModel& theirs, const std::string& folder) {
  const Imported ours(theirs, folder);
  Generator generator(ours.model, ours.source, 16, {.threads = 1});
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6};
  for (size_t length = 1; length <= tokens.size(); ++length) {
    const auto context = std::span(tokens).first(length);
    const std::vector<float> logits = generator.next_logits(context);
    const std::vector<double> expected = theirs.logits(context);
    ASSERT_EQ(logits.size(), expected.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      EXPECT_NEAR(logits[i], expected[i], 1e-5) << "behind " << length << " tokens, logit " << i;
    }
  }
}

class HuggingFaceSourceTest : public testing::Test {
 protected:
  /// What is wrong with the folder as it is now.
  std::string fault_of(const TinyHfModel& theirs, DType dtype = DType::kF32) const {
    theirs.write(folder_ / "m", dtype);
    return message_of<DataError>([&] { Imported(theirs, folder_ / "m"); });
  }

  TempFolder folder_;
};

TEST_F(HuggingFaceSourceTest, LlamaGivesTheLogitsOfItsDefinition) {
  for (const bool tied : {false, true}) {
    const TinyHfModel theirs = TinyHfModel::make_llama(tied);
    theirs.write(folder_ / "m", DType::kF32);
    expect_same_logits(theirs, folder_ / "m");
  }
}

TEST_F(HuggingFaceSourceTest, MinistralGivesTheLogitsOfItsDefinition) {
  const TinyHfModel theirs = TinyHfModel::make_ministral();
  theirs.write(folder_ / "m", DType::kF32);
  expect_same_logits(theirs, folder_ / "m");
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9};
  TinyHfModel whole = theirs;
  whole.windows = {0, 0};
  EXPECT_GT(std::abs(whole.logits(tokens)[0] - theirs.logits(tokens)[0]), 1e-3);
}

TEST_F(HuggingFaceSourceTest, Phi3GivesTheLogitsOfItsDefinition) {
  const TinyHfModel theirs = TinyHfModel::make_phi3();
  theirs.write(folder_ / "m", DType::kF32, 2);
  expect_same_logits(theirs, folder_ / "m");
}

TEST_F(HuggingFaceSourceTest, Gemma3GivesTheLogitsOfItsDefinition) {
  const TinyHfModel theirs = TinyHfModel::make_gemma3();
  theirs.write(folder_ / "m", DType::kF32, 2);
  expect_same_logits(theirs, folder_ / "m");
}

TEST_F(HuggingFaceSourceTest, Qwen2GivesTheLogitsOfItsDefinition) {
  const TinyHfModel theirs = TinyHfModel::make_qwen2();
  theirs.write(folder_ / "m", DType::kBF16, 3);
  expect_same_logits(theirs, folder_ / "m");
}

TEST_F(HuggingFaceSourceTest, Gpt2GivesTheLogitsOfItsDefinition) {
  const TinyHfModel theirs = TinyHfModel::make_gpt2();
  theirs.write(folder_ / "m", DType::kF16, 2);
  expect_same_logits(theirs, folder_ / "m");
}

// As the files of "gpt2" are: of the model without its head, with masks that are no parameters.
TEST_F(HuggingFaceSourceTest, Gpt2MayLackItsPrefixAndHaveMasks) {
  const TinyHfModel theirs = TinyHfModel::make_gpt2();
  TinyHfModel old = theirs;
  old.tensors.clear();
  for (const auto& [name, tensor] : theirs.tensors) {
    old.tensors[name.substr(std::string("transformer.").size())] = tensor;
  }
  old.tensors["h.0.attn.bias"] = {{1, 1, 2, 2}, {1, 0, 1, 1}};
  old.write(folder_ / "m", DType::kF32);
  expect_same_logits(theirs, folder_ / "m");
}

TEST_F(HuggingFaceSourceTest, TheSameInPiecesOfAnySize) {
  for (const TinyHfModel& theirs : {TinyHfModel::make_gpt2(), TinyHfModel::make_qwen2()}) {
    theirs.write(folder_ / "m", DType::kF32);
    const Imported ours(theirs, folder_ / "m");
    const ModelState whole = whole_state(ours.layout, ours.source);
    for (const int64_t piece_elems : {7, 61}) {
      EXPECT_EQ(whole_state(ours.layout, ours.source, piece_elems).weights, whole.weights);
    }
    EXPECT_TRUE(ours.source.is_zero(StatePart::kExpAvg));
    EXPECT_EQ(whole.exp_avg, empty_state(ours.layout).exp_avg);
  }
}

TEST_F(HuggingFaceSourceTest, TiedOutputThatIsStoredTooMustBeTheSame) {
  TinyHfModel theirs = TinyHfModel::make_llama(true);
  theirs.tensors["lm_head.weight"] = theirs.tensors["model.embed_tokens.weight"];
  theirs.write(folder_ / "m", DType::kF32);
  expect_same_logits(theirs, folder_ / "m");
  theirs.tensors["lm_head.weight"].values[5] += 1;
  EXPECT_THAT(fault_of(theirs),
              AllOf(HasSubstr("tensor \"lm_head.weight\" of '"),
                    HasSubstr("it is not equal to \"model.embed_tokens.weight\"")));
}

TEST_F(HuggingFaceSourceTest, RefusesTensorsThatDoNotFit) {
  const TinyHfModel good = TinyHfModel::make_llama(false);
  TinyHfModel bad = good;
  bad.tensors.erase("model.layers.1.mlp.up_proj.weight");
  EXPECT_THAT(fault_of(bad), HasSubstr("has no tensor \"model.layers.1.mlp.up_proj.weight\", "
                                       "which config.json asks for"));
  bad = good;
  bad.tensors["model.layers.2.mlp.up_proj.weight"] = bad.tensors["model.norm.weight"];
  EXPECT_THAT(fault_of(bad), HasSubstr("tensor \"model.layers.2.mlp.up_proj.weight\" of '" +
                                       (folder_ / "m/model.safetensors") +
                                       "': the model that config.json describes has no such"));
  bad = good;
  bad.tensors["model.layers.0.self_attn.q_proj.bias"] = bad.tensors["model.norm.weight"];
  EXPECT_THAT(fault_of(bad), HasSubstr("has no such tensor"));
  bad = good;
  bad.tensors["model.layers.0.self_attn.k_proj.weight"].shape = {24, 6};
  EXPECT_THAT(fault_of(bad), HasSubstr("its shape is [24,6], but config.json asks for [12,12]"));
  // GPT-2's matrices the wrong way round.
  bad = TinyHfModel::make_gpt2();
  bad.tensors["transformer.h.0.mlp.c_fc.weight"].shape = {10, 12};
  EXPECT_THAT(fault_of(bad), HasSubstr("its shape is [10,12], but config.json asks for [12,10]"));
}

TEST_F(HuggingFaceSourceTest, RefusesOtherDtypes) {
  const TinyHfModel theirs = TinyHfModel::make_llama(false);
  EXPECT_THAT(fault_of(theirs, DType::kU16),
              HasSubstr("its dtype is u16, but weights must be f32, bf16 or f16"));
}

}  // namespace
}  // namespace braid
