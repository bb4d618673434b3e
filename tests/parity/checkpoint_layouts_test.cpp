#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/samples.h"
#include "config/load.h"
#include "config/validate.h"
#include "plan/run_spec.h"
#include "state/checkpointing.h"
#include "support/engine_runs.h"
#include "support/model_state.h"
#include "support/thinned.h"

namespace braid {
namespace {

constexpr int64_t kStepsBefore = 3;
constexpr int64_t kStepsAfter = 3;

/// A Llama with experts in all layers, beside the names of families.
constexpr std::string_view kWithExperts = "experts";
/// The same with trained biases of routers' logits.
constexpr std::string_view kWithLogitBiases = "logit_biases";
/// The same with biases in routers, which steps move by so much.
constexpr std::string_view kWithBiases = "biases";
constexpr float kBiasStep = 0.125F;
/// A hybrid, whose tensor ranks have five runs of rows of a matrix.
constexpr std::string_view kWithStates = "states";
/// A Llama with multi-token prediction: two pipeline ranks hold the embedding.
constexpr std::string_view kWithMtp = "mtp";

RunConfig config_of(const std::string& model, const std::vector<std::string>& layout) {
  std::vector<std::string> overrides = {
      "model.layers=4",       "model.width=24",       "model.heads=4",
      "model.ffn=24",         "model.init_std=0.1",   "train.microbatch=1",
      "train.sequence=12",    "train.global_batch=8", "optimizer.learning_rate=1e-3",
      "optimizer.beta2=0.99", "eval.interval=0",      "logging.run_folder=none",
      "optimizer.ema=0.75"};
  if (model == kWithExperts || model == kWithLogitBiases || model == kWithBiases) {
    overrides.insert(overrides.end(), {"model.family=llama", "model.experts=4",
                                       "model.experts_per_token=2", "model.expert_ffn=8"});
    if (model == kWithLogitBiases) {
      overrides.emplace_back("model.router_logit_bias=true");
    }
    if (model == kWithBiases) {
      overrides.insert(overrides.end(), {"model.router_bias=true", "model.router_scores=sigmoid",
                                         fmt::format("moe.bias_update_rate={}", kBiasStep)});
    }
  } else if (model == kWithStates) {
    overrides.insert(overrides.end(),
                     {"model.family=nemotron_h", "model.pattern=mamba,mlp,attention,mamba",
                      "model.mamba_num_heads=4", "model.mamba_head_dim=3", "model.ssm_state_size=5",
                      "model.mamba_n_groups=2"});
  } else if (model == kWithMtp) {
    overrides.emplace_back("model.mtp_depth=2");
  } else {
    overrides.push_back("model.family=" + model);
  }
  overrides.insert(overrides.end(), layout.begin(), layout.end());
  RunConfig config = parse_config("", "layouts", overrides);
  validate(config);
  return resolved(config);
}

/// An engine and its place in the data, as a process has them.
class Session {
 public:
  explicit Session(const RunConfig& config)
      : config_(config),
        engine_(plan_run(resolve_run(config, 50)), {.poison_step_arena = true}),
        source_(config.train.sequence) {}

  void start_anew() {
    engine_.write_state(initial_state(engine_.plan().layout, engine_.plan().run.model, 5));
  }

  void resume(const std::string& path) {
    const LoadedCheckpoint checkpoint(path);
    engine_.write_state(
        CheckpointedState(checkpoint, engine_.plan().layout, engine_.plan().run.model));
    steps_done_ = checkpoint.state().step;
  }

  std::string save(const std::string& folder) {
    const RunPlan& plan = engine_.plan();
    const DeviceShards state = engine_.state_shards();
    return save_model_state(folder, {.step = steps_done_}, plan.layout, plan.run.model,
                            state.shards(), {.keep = 0});
  }

  std::vector<double> train(int64_t steps) {
    BatchLoader loader(source_, {.shape = {.num_ranks = config_.parallel.data,
                                           .num_microbatches = num_microbatches(config_),
                                           .microbatch = config_.train.microbatch},
                                 .consumed_samples = steps_done_ * config_.train.global_batch});
    std::vector<double> losses;
    for (int64_t i = 0; i < steps; ++i) {
      const StepResult result = engine_.train_step(*loader.next(), config_.optimizer,
                                                   config_.optimizer.learning_rate, ++steps_done_);
      losses.push_back(result.loss +
                       std::accumulate(result.mtp_losses.begin(), result.mtp_losses.end(), 0.0));
    }
    return losses;
  }

  ModelState state() const { return state_of(engine_); }
  const ParameterLayout& layout() const { return engine_.plan().layout; }

 private:
  RunConfig config_;
  Engine engine_;
  NoisySequences source_;
  int64_t steps_done_ = 0;
};

struct LayoutOfTest {
  const char* name;
  std::vector<std::string> overrides;
};

std::vector<LayoutOfTest> layouts() {
  return {
      {"one", {}},
      {"tp2pp2", {"parallel.ranks=4", "parallel.tensor=2", "parallel.pipeline=2"}},
      {"dp4parameters", {"parallel.ranks=4", "parallel.shard=parameters"}},
      {"hsdp",
       {"parallel.ranks=4", "parallel.shard=gradients", "parallel.shard_replicas=2",
        "parallel.bucket=virtual_stage"}},
      {"hsdpparts",
       {"parallel.ranks=4", "parallel.shard=parameters", "parallel.shard_replicas=2",
        "parallel.shard_over_replicas=true"}},
      {"cp2", {"parallel.ranks=2", "parallel.context=2", "parallel.shard=optimizer"}},
      {"interleaved",
       {"parallel.ranks=4", "parallel.pipeline=2", "parallel.virtual_stages=2",
        "parallel.schedule=interleaved", "parallel.shard=optimizer"}},
  };
}

struct Case {
  std::string family;
  LayoutOfTest before;
  LayoutOfTest after;
};

std::ostream& operator<<(std::ostream& out, const Case& test) {
  return out << test.family << " " << test.before.name << " to " << test.after.name;
}

/// A run that never stops, on one rank.
const std::vector<double>& losses_of_one_rank(const std::string& family) {
  static std::map<std::string, std::vector<double>> losses;
  const auto [known, is_new] = losses.try_emplace(family);
  if (is_new) {
    Session session(config_of(family, {}));
    session.start_anew();
    known->second = session.train(kStepsBefore + kStepsAfter);
  }
  return known->second;
}

class CheckpointLayouts : public testing::TestWithParam<Case> {};

// Losses of 4 nats in f32; layouts add gradients up in another order, and the first updates of
// AdamW divide a gradient by its own size, so that a weight whose gradient is near zero may move by
// up to the learning rate of 1e-3 to either side. What is loaded is compared bitwise.
TEST_P(CheckpointLayouts, GoesOnAsIfNothingHadHappened) {
  const auto& [family, before, after] = GetParam();
  const MemoryFolder folder;
  std::string path;
  {
    Session first(config_of(family, before.overrides));
    first.start_anew();
    first.train(kStepsBefore);
    path = first.save(folder / "c");
    const ModelState saved = first.state();
    Session second(config_of(family, after.overrides));
    second.resume(path);
    const ModelState loaded = second.state();
    EXPECT_EQ(loaded.weights, saved.weights);
    EXPECT_EQ(loaded.exp_avg, saved.exp_avg);
    EXPECT_EQ(loaded.exp_avg_sq, saved.exp_avg_sq);
    EXPECT_EQ(loaded.ema, saved.ema);
    EXPECT_NE(saved.ema, saved.weights);
    const std::vector<double> losses = second.train(kStepsAfter);
    for (int64_t i = 0; i < kStepsAfter; ++i) {
      EXPECT_NEAR(losses[static_cast<size_t>(i)],
                  losses_of_one_rank(family)[static_cast<size_t>(kStepsBefore + i)], 2e-5);
    }
    if (before.overrides == after.overrides) {
      EXPECT_EQ(losses, first.train(kStepsAfter));
      EXPECT_EQ(second.state().weights, first.state().weights);
      EXPECT_EQ(second.state().ema, first.state().ema);
    }
  }
  const auto num_ranks = config_of(family, before.overrides).parallel.ranks;
  EXPECT_EQ(LoadedCheckpoint(path).files().size(), static_cast<size_t>(2 * num_ranks));
}

/// Layouts of a model with experts, which ranks hold in different parts.
std::vector<LayoutOfTest> expert_layouts() {
  return {{"all", {}},
          {"ep4", {"parallel.ranks=4", "parallel.expert=4"}},
          {"ep2optimizer", {"parallel.ranks=4", "parallel.expert=2", "parallel.shard=optimizer"}},
          {"ep2etp2", {"parallel.ranks=4", "parallel.expert=2", "parallel.expert_tensor=2"}}};
}

/// The biases of all routers.
std::vector<float> biases_of(const Session& session) {
  std::vector<float> biases;
  ModelState state = session.state();
  for (const Parameter& parameter : session.layout().parameters) {
    if (parameter.name.ends_with(".moe.router.bias")) {
      const auto elements = elements_of(session.layout(), parameter.name, state.weights);
      biases.insert(biases.end(), elements.begin(), elements.end());
    }
  }
  return biases;
}

// Steps move biases by whole multiples of a power of two, by counts that are exact in every layout.
// So they are the same bits in all of them, unless rounding changes a token's choice, which it does
// not in these runs.
TEST(CheckpointBiases, GoOnBitwiseWithOtherExpertsOnEachRank) {
  const std::string family(kWithBiases);
  for (const LayoutOfTest& before : thinned(expert_layouts(), 3)) {
    const MemoryFolder folder;
    Session first(config_of(family, before.overrides));
    first.start_anew();
    first.train(kStepsBefore);
    const std::string path = first.save(folder / "c");
    const std::vector<float> saved = biases_of(first);
    ASSERT_EQ(saved.size(), 16u);  // of four routers
    const std::vector<double> losses = first.train(kStepsAfter);
    EXPECT_NE(biases_of(first), saved);
    for (const float bias : biases_of(first)) {
      EXPECT_EQ(std::remainder(bias, kBiasStep), 0.0F) << before.name;
    }
    for (const LayoutOfTest& after : thinned(expert_layouts(), 2)) {
      SCOPED_TRACE(fmt::format("{} to {}", before.name, after.name));
      Session second(config_of(family, after.overrides));
      second.resume(path);
      EXPECT_EQ(biases_of(second), saved);
      const std::vector<double> resumed = second.train(kStepsAfter);
      EXPECT_EQ(biases_of(second), biases_of(first));
      if (before.overrides == after.overrides) {
        EXPECT_EQ(resumed, losses);
        EXPECT_EQ(second.state().weights, first.state().weights);
      }
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const LayoutOfTest& before : expert_layouts()) {
    for (const LayoutOfTest& after : expert_layouts()) {
      list.push_back({std::string(kWithExperts), before, after});
    }
  }
  const std::vector<LayoutOfTest> experts = expert_layouts();
  for (const auto& [before, after] : {std::pair(0, 2), std::pair(2, 1), std::pair(3, 3)}) {
    list.push_back({std::string(kWithLogitBiases), experts[static_cast<size_t>(before)],
                    experts[static_cast<size_t>(after)]});
  }
  for (const LayoutOfTest& before : layouts()) {
    for (const LayoutOfTest& after : layouts()) {
      list.push_back({"llama", before, after});
    }
  }
  // Some units of sharded weights are whole.
  const LayoutOfTest whole = {
      "wholeunits",
      {"parallel.ranks=4", "parallel.pipeline=2", "parallel.shard=parameters",
       "overlap.mode=manual", "overlap.overlap_param_gather=true",
       "overlap.param_gather_whole_units=2"}};
  list.push_back({"llama", whole, whole});
  list.push_back({"llama", whole, layouts()[2]});
  list.push_back({"gpt2", layouts()[1], whole});
  const std::vector<LayoutOfTest> all = layouts();
  for (const auto& [before, after] : {std::pair(0, 1), std::pair(1, 0), std::pair(1, 2)}) {
    list.push_back({std::string(kWithStates), all[static_cast<size_t>(before)],
                    all[static_cast<size_t>(after)]});
  }
  for (const auto& [before, after] : {std::pair(1, 1), std::pair(1, 2), std::pair(2, 5)}) {
    list.push_back(
        {std::string(kWithMtp), all[static_cast<size_t>(before)], all[static_cast<size_t>(after)]});
  }
  // Tied embeddings: two pipeline ranks hold the table.
  for (const size_t i : {1u, 2u, 5u}) {
    for (const size_t j : {0u, 1u, 2u, 5u}) {
      list.push_back({"gpt2", all[i], all[j]});
    }
  }
  return list;
}

std::vector<std::vector<float>> rounded_to_bf16(std::vector<std::vector<float>> units) {
  for (std::vector<float>& unit : units) {
    std::ranges::transform(unit, unit.begin(),
                           [](float value) { return static_cast<float>(BFloat16(value)); });
  }
  return units;
}

RunConfig with_moments(const std::string& dtype, std::vector<std::string> layout) {
  layout.push_back("optimizer.moments_dtype=" + dtype);
  return config_of("llama", layout);
}

// Gradients are not in files: a run goes on bit by bit, and may go on with the other type.
TEST(CheckpointMainGrads, OfEitherTypeGoOnWithEitherType) {
  const auto config_with = [](const std::string& dtype) {
    return config_of(
        "llama", {"parallel.ranks=2", "parallel.shard=gradients", "train.dtype=bfloat16",
                  "parallel.grad_reduce_dtype=bfloat16", "optimizer.main_grads_dtype=" + dtype});
  };
  for (const std::string stored : {"float32", "bfloat16"}) {
    for (const std::string loaded : {"float32", "bfloat16"}) {
      SCOPED_TRACE(stored + " to " + loaded);
      const MemoryFolder folder;
      Session first(config_with(stored));
      first.start_anew();
      first.train(kStepsBefore);
      const std::string path = first.save(folder / "c");
      Session second(config_with(loaded));
      second.resume(path);
      EXPECT_EQ(second.state().weights, first.state().weights);
      EXPECT_EQ(second.state().exp_avg_sq, first.state().exp_avg_sq);
      EXPECT_EQ(second.train(kStepsAfter) == first.train(kStepsAfter), stored == loaded);
      EXPECT_EQ(second.state().weights == first.state().weights, stored == loaded);
    }
  }
}

// Files have fp32 moments. So a run with bf16 moments loses nothing in a file and goes on with the
// same bits, and a run may go on with the other type.
TEST(CheckpointMoments, OfAnyTypeGoOnWithAnyType) {
  const std::vector<std::string> before = {"parallel.ranks=2", "parallel.shard=optimizer"};
  for (const std::string stored : {"float32", "bfloat16"}) {
    for (const std::string loaded : {"float32", "bfloat16"}) {
      SCOPED_TRACE(stored + " to " + loaded);
      const MemoryFolder folder;
      Session first(with_moments(stored, before));
      first.start_anew();
      first.train(kStepsBefore);
      const std::string path = first.save(folder / "c");
      const LoadedCheckpoint checkpoint(path);
      for (const StoredTensor& tensor : checkpoint.index().tensors) {
        EXPECT_EQ(tensor.dtype, DType::kF32) << tensor.name;
      }
      const ModelState saved = first.state();
      for (const auto& after : {before, {"parallel.ranks=4", "parallel.shard=parameters"}}) {
        Session second(with_moments(loaded, after));
        second.resume(path);
        const ModelState found = second.state();
        EXPECT_EQ(found.weights, saved.weights);
        const bool rounds = stored != loaded && loaded == "bfloat16";
        EXPECT_EQ(found.exp_avg, rounds ? rounded_to_bf16(saved.exp_avg) : saved.exp_avg);
        EXPECT_EQ(found.exp_avg_sq, rounds ? rounded_to_bf16(saved.exp_avg_sq) : saved.exp_avg_sq);
        if (stored == loaded && after == before) {
          EXPECT_EQ(second.train(kStepsAfter), first.train(kStepsAfter));
          EXPECT_EQ(second.state().weights, first.state().weights);
          EXPECT_EQ(second.state().exp_avg_sq, first.state().exp_avg_sq);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pairs, CheckpointLayouts, testing::ValuesIn(thinned(cases(), 16)));

}  // namespace
}  // namespace braid
