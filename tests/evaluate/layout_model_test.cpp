#include "evaluate/layout_model.h"

#include <gmock/gmock.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/load.h"
#include "config/validate.h"
#include "evaluate/held_out.h"
#include "model/parameters.h"
#include "runtime/device.h"
#include "state/initial_weights.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

/// Sums of f32 in other orders over some hundred terms, in losses of about 5 a token.
constexpr double kTolerance = 2e-5;
constexpr int64_t kContext = 16;

/// A model with the weights of its start, on one device and on ranks.
class LayoutModelTest : public ::testing::Test {
 protected:
  LayoutModelTest() {
    std::mt19937 random(7);
    for (int i = 0; i < 11 * kContext + 6; ++i) {
      stream_.push_back(static_cast<int32_t>(random() % kVocabulary));
    }
  }

  static RunConfig config_of(const std::string& model, const std::vector<std::string>& overrides) {
    return parse_config("[model]\nwidth = 32\nheads = 4\nvocabulary = 50\n" + model +
                            "[train]\nsequence = 16\nmicrobatch = 1\nglobal_batch = 8\n"
                            "[data]\ntrain = \"x\"\n[logging]\nrun_folder = \"r\"\n",
                        "test", overrides);
  }

  static Device cpu(RunConfig config) {
    config.parallel = {};
    config.runtime.device = "cpu";
    return choose_device(config, find_gpus());
  }

  /// Of weights that are drawn the same for all layouts.
  struct Weights {
    explicit Weights(const RunConfig& config)
        : model(resolve_run(resolved(config), kVocabulary).model),
          layout(make_parameter_layout(model_parameters(model))),
          initial(layout, model, 3) {}
    ModelSpec model;
    ParameterLayout layout;
    InitialWeights initial;
  };

  HeldOutScore on_device(const std::string& model_text) {
    const RunConfig config = config_of(model_text, {});
    const Weights weights(config);
    CausalModel model(weights.model, weights.initial, kContext,
                      {.threads = 1, .device = cpu(config)});
    DeviceScorer scorer(model, workers_);
    return score_with(scorer);
  }

  HeldOutScore in_layout(const std::string& model_text, const std::vector<std::string>& overrides) {
    const auto processes = make_lone_process();
    const RunConfig config = config_of(model_text, overrides);
    const Weights weights(config_of(model_text, {}));
    LayoutModel model(evaluation_config(config, weights.model, kContext, cpu(config)),
                      weights.model, weights.initial, {.processes = processes.get()});
    const HeldOutScore score = score_with(model);
    processes->finish();
    return score;
  }

  HeldOutScore score_with(SequenceScorer& scorer) const {
    HeldOutScorer held_out(scorer);
    for (size_t at = 0; at < stream_.size(); at += 7) {
      held_out.add(std::span(stream_).subspan(at, std::min<size_t>(7, stream_.size() - at)));
    }
    return held_out.finish();
  }

  static constexpr int32_t kVocabulary = 50;
  std::vector<int32_t> stream_;
  WorkerPool workers_{2};
};

struct Layout {
  std::string name;
  std::string model;
  std::vector<std::string> overrides;
};

const std::string kDense = "family = \"llama\"\nlayers = 4\nkv_heads = 2\n";
const std::string kLearnedPositions = "family = \"gpt2\"\nlayers = 2\n";
const std::string kExperts =
    "family = \"llama\"\nlayers = 2\nexperts = 4\nexperts_per_token = 2\nexpert_ffn = 24\n";
const std::string kHybrid =
    "family = \"llama\"\npattern = \"mamba attention mlp\"\nmamba_num_heads = 4\n"
    "mamba_head_dim = 8\nssm_state_size = 8\nmamba_n_groups = 2\nmamba_chunk_size = 8\n";
const std::string kMoreTokens = "family = \"llama\"\nlayers = 2\nmtp_depth = 1\n";

class Layouts : public LayoutModelTest, public ::testing::WithParamInterface<Layout> {};

INSTANTIATE_TEST_SUITE_P(
    All, Layouts,
    ::testing::Values(
        Layout{"one", kDense, {"parallel.ranks=1"}}, Layout{"data", kDense, {"parallel.ranks=3"}},
        Layout{"sharded", kDense, {"parallel.ranks=2", "parallel.shard=parameters"}},
        Layout{"tensor", kDense, {"parallel.ranks=2", "parallel.tensor=2"}},
        Layout{"sequence_parallel",
               kDense,
               {"parallel.ranks=4", "parallel.tensor=2", "parallel.sequence_parallel=true"}},
        Layout{"pipeline", kDense, {"parallel.ranks=4", "parallel.pipeline=4"}},
        Layout{"interleaved",
               kDense,
               {"parallel.ranks=4", "parallel.pipeline=2", "parallel.virtual_stages=2",
                "parallel.schedule=interleaved"}},
        Layout{"zero_bubble",
               kDense,
               {"parallel.ranks=2", "parallel.pipeline=2", "parallel.schedule=zb-h1"}},
        Layout{"zero_bubble_v",
               kDense,
               {"parallel.ranks=2", "parallel.pipeline=2", "parallel.virtual_stages=2",
                "parallel.schedule=zb-v"}},
        Layout{"dual_pipe",
               kDense,
               {"parallel.ranks=2", "parallel.pipeline=2", "parallel.virtual_stages=2",
                "parallel.schedule=dualpipe-v"}},
        Layout{"context", kDense, {"parallel.ranks=2", "parallel.context=2"}},
        Layout{"all_to_all",
               kDense,
               {"parallel.ranks=2", "parallel.context=2", "parallel.context_method=a2a"}},
        Layout{
            "many",
            kDense,
            {"parallel.ranks=8", "parallel.tensor=2", "parallel.pipeline=2", "parallel.context=2"}},
        Layout{"learned_positions",
               kLearnedPositions,
               {"parallel.ranks=4", "parallel.tensor=2", "parallel.pipeline=2"}},
        Layout{"experts", kExperts, {"parallel.ranks=2", "parallel.expert=2"}},
        Layout{"expert_room",
               kExperts,
               {"parallel.ranks=4", "parallel.expert=4", "moe.capacity=1.05"}},
        Layout{"room_of_another_layout", kExperts, {"parallel.ranks=2", "moe.capacity=1.1"}},
        Layout{"expert_tensor",
               kExperts,
               {"parallel.ranks=4", "parallel.tensor=2", "parallel.expert=2",
                "parallel.sequence_parallel=true"}},
        Layout{"hybrid", kHybrid, {"parallel.ranks=4", "parallel.tensor=2"}},
        Layout{"multi_token", kMoreTokens, {"parallel.ranks=2", "parallel.pipeline=2"}}),
    [](const auto& layout) { return layout.param.name; });

TEST_P(Layouts, HaveTheLossOfOneDevice) {
  const HeldOutScore one = on_device(GetParam().model);
  const HeldOutScore many = in_layout(GetParam().model, GetParam().overrides);
  EXPECT_EQ(many.tokens, std::ssize(stream_) - 1);
  EXPECT_EQ(many.windows, 12);
  EXPECT_EQ(one.tokens, many.tokens);
  EXPECT_NEAR(many.loss(), one.loss(), kTolerance);
  EXPECT_GT(one.loss(), 3.0);  // about ln(50)
}

/// Of a sequence only the tokens from `first` on count, however many others are in the batch.
TEST_F(LayoutModelTest, ScoresTheEndsOfSequences) {
  const RunConfig config = config_of(kDense, {"parallel.ranks=4", "parallel.tensor=2"});
  const Weights weights(config);
  CausalModel on_one(weights.model, weights.initial, kContext,
                     {.threads = 1, .device = cpu(config)});
  DeviceScorer one(on_one, workers_);
  const auto processes = make_lone_process();
  LayoutModel many(evaluation_config(config, weights.model, kContext, cpu(config)), weights.model,
                   weights.initial, {.processes = processes.get()});
  std::vector<ScoredSequence> sequences;
  for (size_t i = 0; i < 11; ++i) {
    const size_t size = 2 + i * 15 / 10;
    sequences.push_back({.tokens = std::span(stream_).subspan(5 * i, size),
                         .first = i % 3 == 0 ? 1 : 1 + i * (size - 2) / 11});
  }
  const std::vector<SequenceScore> expected = one.score(sequences);
  const std::vector<SequenceScore> found = many.score(sequences);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i].logprob, expected[i].logprob, kTolerance * 10) << i;
    EXPECT_TRUE(expected[i].is_greedy.has_value());
    EXPECT_FALSE(found[i].is_greedy.has_value());
  }
  processes->finish();
}

TEST_F(LayoutModelTest, NeedsNoMomentsAndNoDataOfTheRun) {
  RunConfig config =
      config_of(kDense, {"parallel.ranks=2", "optimizer.ema=0.9", "train.fp8_watch=0",
                         "data.document_mask=true", "moe.record=routes"});
  config.train.microbatch = 3;
  const RunConfig found =
      resolved(evaluation_config(config, Weights(config_of(kDense, {})).model, 32, cpu(config)));
  validate(found);
  EXPECT_EQ(found.optimizer.ema, 0);
  EXPECT_EQ(found.optimizer.name, "sgd");
  EXPECT_FALSE(found.data.document_mask);
  EXPECT_EQ(found.moe.record, "");
  EXPECT_EQ(found.train.sequence, 32);
  EXPECT_EQ(found.train.microbatch, 4);
  EXPECT_EQ(found.train.global_batch, 8);
}

TEST_F(LayoutModelTest, RefusesWeightsThatAreNotFinite) {
  class Infinite final : public StateSource {
   public:
    void read(StatePart, size_t, int64_t, std::span<float> out, WorkerPool&) const override {
      std::ranges::fill(out, std::numeric_limits<float>::infinity());
    }
    bool is_zero(StatePart part) const override { return part != StatePart::kWeights; }
  };
  const RunConfig config = config_of(kDense, {"parallel.ranks=2"});
  const Weights weights(config);
  const auto processes = make_lone_process();
  LayoutModel model(evaluation_config(config, weights.model, kContext, cpu(config)), weights.model,
                    Infinite(), {.processes = processes.get()});
  EXPECT_THAT(message_of<DataError>([&] { score_with(model); }),
              HasSubstr("the model's weights are no result of training"));
  processes->finish();
}

}  // namespace
}  // namespace braid
