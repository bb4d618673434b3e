// Random runs of models with experts, latents, states and more depths, under random layouts,
// optimizers and settings: each gradient is that of one rank, and overlap changes no bit. One case
// is one seed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "config/fields.h"
#include "config/load.h"
#include "config/mistakes.h"
#include "config/validate.h"
#include "parity/layout_config.h"
#include "support/engine_runs.h"
#include "support/overlap_settings.h"
#include "support/proposals.h"
#include "support/random_words.h"
#include "support/thinned.h"
#include "verify/verify_layout.h"

namespace braid {
namespace {

constexpr uint64_t kNumSeeds = thinned_count(200u, 20);
constexpr int64_t kVocabulary = 101;

/// Draws runs of at most 16 ranks; their settings may be impossible together.
class RandomRuns : private RandomWords {
 public:
  explicit RandomRuns(uint64_t seed) : RandomWords(seed) {}

  Overrides draw() {
    words_ = {"eval.interval=0", "logging.run_folder=none", "optimizer.learning_rate=3e-3"};
    draw_model();
    draw_ranks();
    draw_pipeline();
    draw_shards();
    draw_train();
    draw_experts();
    draw_memory();
    draw_overlap();
    return words_;
  }

 private:
  void draw_model() {
    const std::string model = any<std::string>(
        {kExpertsModel, kLogitBiasModel, kSharedExpertModel, kGatedExpertModel, kDeepseekModel,
         kDeepseekModel, kLatentsModel, kHybridModel, kHybridExpertsModel, kHybridExpertsMtpModel,
         kExpertsMtpModel, kQwenModel});
    for (const std::string& word : words(model)) {
      words_ = applied(words_, {word});
    }
    has_experts_ = model.find("model.experts=") != std::string::npos;
    has_states_ = model.find("mamba") != std::string::npos;
  }

  void draw_ranks() {
    do {
      tensor_ = any({1, 1, 2, 2, 4});
      pipeline_ = any({1, 1, 1, 2, 2, 4});
      context_ = any({1, 1, 1, 2});
      data_ = any({1, 2, 2, 4, 8});
    } while (num_ranks() == 1 || num_ranks() > 16);
    set("parallel.ranks", num_ranks());
    set("parallel.tensor", tensor_);
    set("parallel.pipeline", pipeline_);
    set("parallel.context", context_);
    if (tensor_ > 1) {
      set("parallel.sequence_parallel", !one_in(4));
    }
    if (context_ > 1) {
      set("parallel.context_method", any({"ring", "all_gather", "a2a", "a2a+ring"}));
      if (has_states_) {
        set("parallel.mamba_context", any({"heads", "states"}));
      }
    }
  }

  void draw_pipeline() {
    if (pipeline_ == 1) {
      return;
    }
    const std::string schedule =
        any({"gpipe", "1f1b", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"});
    set("parallel.schedule", schedule);
    set("parallel.pipeline_layout", "balanced");
    if (schedule == "interleaved" || schedule == "zb-v" || schedule == "dualpipe-v") {
      set("parallel.virtual_stages", 2);
    }
  }

  void draw_shards() {
    set("parallel.shard", any({"none", "optimizer", "gradients", "parameters"}));
    if (one_in(4)) {
      set("parallel.shard_replicas", 2);
      set("parallel.shard_over_replicas", one_in(2));
    }
    set("parallel.bucket", any({"layer", "layer", "virtual_stage"}));
    set("optimizer.name", any({"adamw", "adamw", "muon", "lion", "sgd"}));
  }

  void draw_train() {
    const int64_t microbatch = any({1, 2, 2});
    set("train.microbatch", microbatch);
    set("train.global_batch", microbatch * data_ * any<int64_t>({1, 2, pipeline_, 2 * pipeline_}));
    set("train.sequence", 4 * context_ * tensor_);
    set("train.dtype", any({"float32", "bfloat16"}));
    if (one_in(4)) {
      set("train.fp8", any({"tensor", "block", "mxfp8"}));
    }
  }

  void draw_experts() {
    if (!has_experts_) {
      return;
    }
    set("parallel.expert", any({1, 2, 2, 4, 8}));
    if (one_in(3)) {
      set("parallel.expert_tensor", 2);
    }
    set("moe.exchange", any({"auto", "direct", "blocks", "hosts"}));
    set("moe.exchange_hosts", 2);
    if (one_in(3)) {
      set("moe.capacity", any({1.0, 1.5}));
    }
    if (one_in(5)) {
      set("moe.expert_capacity", 1.25);
    }
    set("runtime.fuse_swiglu", any({"on", "off"}));
  }

  void draw_memory() {
    set("memory.recompute", any({"none", "none", "norms", "attention", "compute", "full"}));
    if (one_in(4)) {
      set("memory.offload_layers", 1);
      set("memory.offload_min_bytes", 1);
    }
  }

  void draw_overlap() {
    set("overlap.mode", any({"auto", "manual", "manual"}));
    if (one_in(2)) {
      set("overlap.cost", "h200x16");
      set("overlap.list_schedule", one_in(2));
    }
    for (const Field* const field : overlap_keys()) {
      if (words_.back() != "overlap.mode=auto" && one_in(3)) {
        const std::vector<std::string> values = other_values(*field);
        words_.push_back(fmt::format("overlap.{}={}", field->name,
                                     values[static_cast<size_t>(below(std::ssize(values)))]));
      }
    }
  }

  int64_t num_ranks() const { return tensor_ * pipeline_ * context_ * data_; }

  bool has_experts_ = false;
  bool has_states_ = false;
  int64_t tensor_ = 1, pipeline_ = 1, context_ = 1, data_ = 1;
};

/// The key that a refusal begins with, alone: it is removed.
Proposal without_refused_key(const std::string& refusal) {
  return {refusal.substr(0, refusal.find_first_of(" :"))};
}

/// The possible run that these settings, or what refusals propose instead, lead to.
std::optional<Overrides> made_possible(Overrides overrides) {
  constexpr int kMostChanges = 40;
  for (int change = 0; change < kMostChanges; ++change) {
    try {
      RunConfig config = parse_config("", "random", overrides);
      validate(config);
      config = resolved(config);
      resolve_run(config, kVocabulary);
      resolve_run(shrunken(config), 0);
      return overrides;
    } catch (const ConfigError& error) {
      const std::string refusal = mistakes_of(error).front();
      const std::vector<Proposal> proposals = proposals_of(refusal);
      overrides = applied(std::move(overrides),
                          proposals.empty() ? without_refused_key(refusal) : proposals.front());
    }
  }
  return std::nullopt;
}

/// The first possible run that this seed leads to.
Overrides random_run_of(uint64_t seed) {
  RandomRuns runs(seed);
  for (;;) {
    if (std::optional<Overrides> overrides = made_possible(runs.draw())) {
      return *std::move(overrides);
    }
  }
}

class RandomRunsTest : public testing::TestWithParam<uint64_t> {};

void expect_gradients_of_one_rank(const RunConfig& config) {
  if (config.moe.expert_capacity == 0) {  // which ranks that share tokens drop apart
    const RunSpec small = resolve_run(shrunken(config), 0);
    EXPECT_LT(compare_with_one_rank(small, {.steps = 1}).worst_gradient(), 1e-10);
  }
}

void expect_bits_of_no_overlap(RunConfig config) {
  if (config.overlap.pair_forward_backward == "halves" ||
      overlap_setup(config.overlap).context.may_change_rounding) {
    return;
  }
  const Outcome with = run(config, 2);
  config.overlap = overlap_of({"mode=off"});
  expect_same_bits(run(config, 2), with);
}

TEST_P(RandomRunsTest, EqualOneRankAndHaveTheBitsOfNoOverlap) {
  const Overrides overrides = random_run_of(GetParam());
  SCOPED_TRACE(fmt::format("{}", fmt::join(overrides, " ")));
  RunConfig config = parse_config("", "random", overrides);
  validate(config);
  config = resolved(config);
  try {
    expect_gradients_of_one_rank(config);
    expect_bits_of_no_overlap(config);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();  // with the trace, which says the settings
  }
}

INSTANTIATE_TEST_SUITE_P(Random, RandomRunsTest, testing::Range(uint64_t{0}, kNumSeeds),
                         [](const auto& seed) { return fmt::format("seed_{}", seed.param); });

}  // namespace
}  // namespace braid
