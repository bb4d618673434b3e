#include "model/stage_slice.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace braid {
namespace {

ModelSpec model(const ModelStyle& style, bool tied) {
  return {.style = style,
          .layers = 5,
          .width = 24,
          .heads = 3,
          .kv_heads = 3,
          .head_size = 8,
          .ffn = 40,
          .vocabulary = 130,
          .max_positions = 16,
          .tied_embeddings = tied,
          .qkv_bias = true};
}

std::vector<std::string> names(const std::vector<Parameter>& list) {
  std::vector<std::string> out;
  for (const Parameter& parameter : list) {
    out.push_back(parameter.name);
  }
  return out;
}

std::vector<StageSlice> three_stages() {
  return {{.first_layer = 0, .num_layers = 0, .has_embedding = true, .has_head = false},
          {.first_layer = 0, .num_layers = 4, .has_embedding = false, .has_head = false},
          {.first_layer = 4, .num_layers = 1, .has_embedding = false, .has_head = true}};
}

TEST(StageParameters, OfTheWholeModelAreAll) {
  for (const ModelStyle& style : {kLlamaStyle, kGpt2Style}) {
    for (const bool tied : {false, true}) {
      const ModelSpec spec = model(style, tied);
      EXPECT_EQ(names(stage_parameters(spec, whole_model(spec))), names(model_parameters(spec)));
      EXPECT_FALSE(has_embedding_copy(spec, whole_model(spec)));
    }
  }
}

TEST(StageParameters, OfAllStagesAreTheModelInOrder) {
  for (const ModelStyle& style : {kLlamaStyle, kGpt2Style}) {
    const ModelSpec spec = model(style, false);
    std::vector<std::string> all;
    for (const StageSlice& stage : three_stages()) {
      for (const std::string& name : names(stage_parameters(spec, stage))) {
        all.push_back(name);
      }
    }
    EXPECT_EQ(all, names(model_parameters(spec)));
  }
}

TEST(StageParameters, HoldACopyOfATiedEmbeddingBehindTheHead) {
  const ModelSpec spec = model(kGpt2Style, true);
  const auto stages = three_stages();
  EXPECT_FALSE(has_embedding_copy(spec, stages[0]));
  EXPECT_FALSE(has_embedding_copy(spec, stages[1]));
  EXPECT_TRUE(has_embedding_copy(spec, stages[2]));
  const auto list = stage_parameters(spec, stages[2]);
  EXPECT_EQ(list.back().name, "embedding.tokens");
  EXPECT_EQ(list.back().unit, "embedding");
  EXPECT_EQ(list[list.size() - 2].name, "head.norm.bias");
}

TEST(Stage, IsAPieceOfTheModelWithItsEndsInPlace) {
  const ModelSpec spec = model(kLlamaStyle, false);
  const StageSlice bad[] = {{.first_layer = 0, .num_layers = 6, .has_embedding = true},
                            {.first_layer = -1, .num_layers = 2, .has_embedding = false},
                            {.first_layer = 3, .num_layers = -1, .has_embedding = false},
                            {.first_layer = 1, .num_layers = 4, .has_embedding = true},
                            {.first_layer = 0, .num_layers = 4, .has_embedding = true}};
  for (const StageSlice& stage : bad) {
    EXPECT_THROW(check_stage(spec, stage), InternalError)
        << stage.first_layer << " + " << stage.num_layers;
  }
  for (const StageSlice& stage : three_stages()) {
    EXPECT_NO_THROW(check_stage(spec, stage));
  }
  const StageSlice nothing{.first_layer = 2, .has_embedding = false, .has_head = false};
  EXPECT_NO_THROW(check_stage(spec, nothing));
  EXPECT_TRUE(stage_parameters(spec, nothing).empty());
}

}  // namespace
}  // namespace braid
