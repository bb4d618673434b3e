#include "support/stage_graphs.h"
#include "support/thinned.h"

#include <fmt/core.h>

#include <map>
#include <set>

namespace braid {
namespace {

ModelSpec llama(int64_t kv_heads) {
  return {.layers = 2,
          .width = 10,
          .heads = 12,
          .kv_heads = kv_heads,
          .head_size = 2,
          .ffn = 24,
          .vocabulary = 300};
}

ModelSpec qwen(int64_t kv_heads) {
  ModelSpec spec = llama(kv_heads);
  spec.qkv_bias = true;
  spec.tied_embeddings = true;
  return spec;
}

/// Few tokens: some ranks hold nothing but padding of the vocabulary.
ModelSpec gpt2() {
  return {.style = kGpt2Style,
          .layers = 2,
          .width = 24,
          .heads = 12,
          .kv_heads = 12,
          .head_size = 2,
          .ffn = 36,
          .vocabulary = 50,
          .max_positions = 12,
          .tied_embeddings = true,
          .qkv_bias = true};
}

/// Layers of one block each, beside usual ones.
ModelSpec with_pattern(ModelSpec spec) {
  spec.layers = LayerPattern::parse("mlp attention+mlp attention*2 mlp");
  return spec;
}

struct Model {
  const char* name;
  ModelSpec spec;
};

const std::vector<Model>& models() {
  static const std::vector<Model> kModels = {
      {"llama_gqa", llama(4)},
      {"llama_mqa", llama(1)},
      {"llama_mha", llama(12)},
      {"qwen_tied_gqa", qwen(2)},
      {"qwen_tied_mha", qwen(12)},
      {"gpt2", gpt2()},
      {"llama_pattern", with_pattern(llama(2))},
      {"gpt2_pattern", with_pattern(gpt2())},
  };
  return kModels;
}

struct Case {
  Model model;
  int64_t tensor;
  bool sequence_parallel;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const Model& model : models()) {
    for (const int64_t tensor : {2, 3, 4}) {
      const int64_t kv_heads = model.spec.kv_heads;
      if (kv_heads % tensor == 0 || tensor % kv_heads == 0) {
        list.push_back({model, tensor, false});
        list.push_back({model, tensor, true});
      }
    }
  }
  return list;
}

std::string name_of(const Case& c) {
  return fmt::format("{}_tp{}{}", c.model.name, c.tensor, c.sequence_parallel ? "_sp" : "");
}

double norm_of(const std::vector<double>& values) {
  return std::sqrt(dot(values, values));
}

/// Same loss and same gradients. In f64 sums in another order differ by some 1e-16 of their terms;
/// gradients here are of order 0.01 to 1.
void expect_same_step(StageGraphs& actual, StageGraphs& expected, double tolerance) {
  const double expected_loss = expected.run();
  EXPECT_NEAR(actual.run(), expected_loss, tolerance * expected_loss);
  for (const Parameter& parameter : model_parameters(expected.options().spec)) {
    const std::vector<double> whole = expected.gradient(parameter);
    ASSERT_GT(norm_of(whole), 1e-6) << parameter.name;
    std::vector<double> difference = actual.gradient(parameter);
    for (size_t i = 0; i < whole.size(); ++i) {
      difference[i] -= whole[i];
    }
    EXPECT_LE(norm_of(difference), tolerance * norm_of(whole)) << parameter.name;
  }
}

class TensorParallel : public testing::TestWithParam<Case> {
 protected:
  StageGraphOptions options(int64_t microbatch, int64_t sequence) const {
    return {.spec = GetParam().model.spec,
            .tensor = GetParam().tensor,
            .sequence_parallel = GetParam().sequence_parallel,
            .microbatch = microbatch,
            .sequence = sequence};
  }
};

StageGraphOptions on_one_rank(StageGraphOptions options) {
  options.tensor = 1;
  options.sequence_parallel = false;
  options.stages.clear();
  return options;
}

TEST_P(TensorParallel, GivesTheLossAndGradientsOfOneRank) {
  for (const auto& [microbatch, sequence] : {std::pair(1, 12), {2, 6}, {12, 1}}) {
    StageGraphs sharded(options(microbatch, sequence));
    StageGraphs whole(on_one_rank(sharded.options()));
    expect_same_step(sharded, whole, 1e-12);
  }
}

TEST_P(TensorParallel, CountsEachGradientElementOnce) {
  StageGraphs sharded(options(2, 6));
  sharded.run();
  for (const Parameter& parameter : model_parameters(sharded.options().spec)) {
    const std::vector<double> gradient = sharded.gradient(parameter);
    EXPECT_NEAR(sharded.counted_squares(parameter), dot(gradient, gradient),
                1e-14 * dot(gradient, gradient))
        << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, TensorParallel, testing::ValuesIn(thinned(cases(), 5)),
                         [](const auto& test) { return name_of(test.param); });

TEST(TensorParallelDtypes, F32AndBf16AgreeWithOneRankToTheirPrecision) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const ModelSpec& spec : {qwen(2), gpt2()}) {
        StageGraphOptions options{.spec = spec,
                                  .tensor = 4,
                                  .sequence_parallel = sequence_parallel,
                                  .microbatch = 2,
                                  .sequence = 6,
                                  .dtype = dtype};
        StageGraphs sharded(options);
        StageGraphs whole(on_one_rank(options));
        // Activations are rounded in other places: some roundings of 2^-8, or 2^-24, per layer.
        expect_same_step(sharded, whole, dtype == DType::kF32 ? 1e-5 : 0.06);
      }
    }
  }
}

/// Central differences of the sharded loss: independent of any backward. Step h is off by h^2 / 6
/// of the third derivative and by 1e-16 / h: near 1e-9.
TEST(TensorParallelGradients, AgreeWithDifferencesOfTheShardedLoss) {
  ModelSpec spec = qwen(1);
  spec.layers = 1;
  spec.heads = 4;
  spec.vocabulary = 20;
  StageGraphs sharded(
      {.spec = spec, .tensor = 2, .sequence_parallel = true, .microbatch = 2, .sequence = 3});
  sharded.run();
  std::map<std::string, std::vector<double>> gradients;
  for (const Parameter& parameter : model_parameters(spec)) {
    gradients[parameter.name] = sharded.gradient(parameter);
  }
  constexpr double kStep = 1e-5;
  for (const Parameter& parameter : model_parameters(spec)) {
    std::vector<double> values = StageGraphs::some_weights(parameter);
    const auto loss_at = [&](size_t i, double value) {
      const double kept = std::exchange(values[i], value);
      sharded.set(parameter, values);
      values[i] = kept;
      return sharded.run();
    };
    const size_t stride = values.size() > 30 ? 13 : 1;  // which no row length divides
    for (size_t i = 0; i < values.size(); i += stride) {
      const double difference = loss_at(i, values[i] + kStep) - loss_at(i, values[i] - kStep);
      EXPECT_NEAR(gradients[parameter.name][i], difference / (2 * kStep), 2e-8)
          << parameter.name << " element " << i;
    }
    sharded.set(parameter, values);
  }
}

std::vector<StageSlice> even_stages(int64_t layers, int64_t stages) {
  std::vector<StageSlice> list;
  for (int64_t stage = 0; stage < stages; ++stage) {
    list.push_back({.first_layer = stage * layers / stages,
                    .num_layers = (stage + 1) * layers / stages - stage * layers / stages,
                    .has_embedding = stage == 0,
                    .has_head = stage == stages - 1});
  }
  return list;
}

/// Embedding and head on stages without layers.
std::vector<StageSlice> bare_ends(int64_t layers) {
  return {{.first_layer = 0, .num_layers = 0, .has_embedding = true, .has_head = false},
          {.first_layer = 0, .num_layers = layers, .has_embedding = false, .has_head = false},
          {.first_layer = layers, .num_layers = 0, .has_embedding = false, .has_head = true}};
}

TEST(Stages, InAChainGiveTheLossAndGradientsOfTheWhole) {
  for (ModelSpec spec : {llama(4), qwen(2), gpt2()}) {
    spec.layers = 3;
    for (const auto& stages : {even_stages(3, 2), even_stages(3, 3), bare_ends(3)}) {
      for (const auto& [tensor, sequence_parallel] : {std::pair(1, false), {2, false}, {2, true}}) {
        StageGraphOptions options{.spec = spec,
                                  .tensor = tensor,
                                  .sequence_parallel = sequence_parallel,
                                  .stages = stages,
                                  .microbatch = 2,
                                  .sequence = 4};
        StageGraphs chain(options);
        StageGraphs whole(on_one_rank(options));
        expect_same_step(chain, whole, 1e-12);
      }
    }
  }
}

// Where an identity may be removed, readers see the bytes that it would have copied.
TEST(Identities, RemovedOrNotGiveTheSameBits) {
  for (const ModelSpec& spec : {qwen(2), gpt2()}) {
    StageGraphOptions options{.spec = spec, .tensor = 2, .microbatch = 2, .sequence = 6};
    StageGraphs removed(options);
    options.removes_identities = false;
    StageGraphs kept(options);
    EXPECT_EQ(removed.run(), kept.run());
    for (const Parameter& parameter : model_parameters(spec)) {
      EXPECT_EQ(removed.gradient(parameter), kept.gradient(parameter)) << parameter.name;
    }
  }
}

}  // namespace
}  // namespace braid
