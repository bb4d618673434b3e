// Steps whose experts multiply FP8 copies (train.fp8_experts).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "base/expect_error.h"
#include "config/load.h"
#include "ops/quantize.h"
#include "plan/fp8_sites.h"
#include "support/engine_runs.h"
#include "support/signal_to_noise.h"
#include "support/thinned.h"

namespace braid {
namespace {

using Keys = std::vector<std::string>;

/// Experts whose sizes are multiples of 128, some with few tokens, behind attention that is FP8
/// too.
RunConfig config_of(const Keys& more) {
  Keys keys{"model.family=qwen3",
            "model.pattern=attention+moe*2",
            "model.width=128",
            "model.heads=4",
            "model.kv_heads=2",
            "model.head_size=32",
            "model.experts=4",
            "model.experts_per_token=2",
            "model.expert_ffn=128",
            "train.sequence=64",
            "train.microbatch=2",
            "train.global_batch=8",
            "train.dtype=bfloat16",
            "train.fp8=block",
            "optimizer.learning_rate=3e-3",
            "logging.run_folder=none"};
  keys.insert(keys.end(), more.begin(), more.end());
  return parse_config("", "fp8_experts", keys);
}

RunConfig fp8_config(Keys more = {}) {
  more.emplace_back("train.fp8_experts=true");
  return config_of(more);
}

RunPlan plan_of(const RunConfig& config) {
  validate(config);
  return plan_run(resolve_run(resolved(config), 50));
}

int64_t num_tasks(const RunPlan& plan, std::string_view op) {
  int64_t count = 0;
  for (const RankPlan& rank : plan.ranks) {
    const Program& program = rank.programs[0];
    count += std::ranges::count_if(program.tasks,
                                   [&](const Task& task) { return program.spec(task).op == op; });
  }
  return count;
}

TEST(Fp8Experts, AllThreeProductsOfBothMatrices) {
  constexpr int64_t kLayers = 2;
  constexpr int64_t kMicrobatches = 4;
  RunPlan plan = plan_of(fp8_config());
  for (const char* const op :
       {"scaled_grouped_linear", "scaled_grouped_linear_dgrad", "scaled_grouped_linear_wgrad"}) {
    EXPECT_EQ(num_tasks(plan, op), 2 * kLayers * kMicrobatches) << op;
  }
  EXPECT_EQ(num_tasks(plan, "grouped_linear"), 0);
  EXPECT_EQ(num_tasks(plan, "quantize_grouped"), 4 * kLayers * kMicrobatches);
  plan = plan_of(fp8_config({"train.fp8_filter=*.moe.fc1"}));
  EXPECT_EQ(num_tasks(plan, "scaled_grouped_linear"), kLayers * kMicrobatches);
  EXPECT_EQ(num_tasks(plan, "grouped_linear_wgrad"), kLayers * kMicrobatches);
  plan = plan_of(config_of({}));
  EXPECT_EQ(num_tasks(plan, "grouped_linear_swiglu"), kLayers * kMicrobatches);
  EXPECT_EQ(num_tasks(plan, "grouped_linear"), kLayers * kMicrobatches);
}

TEST(Fp8Experts, AreInTheTableOfProducts) {
  const std::string table = describe_fp8(resolve_run(resolved(fp8_config()), 50));
  EXPECT_THAT(table,
              testing::HasSubstr("moe.fc1              256 x    256 x    128     2 layers, 4 "
                                 "experts  f8e4m3\n"));
  EXPECT_THAT(describe_fp8(resolve_run(resolved(config_of({})), 50)),
              testing::Not(testing::HasSubstr("moe")));
}

TEST(Fp8Experts, ModelsWithoutExpertsAreRefused) {
  RunConfig config = small_config();
  config.train.fp8 = "block";
  config.train.fp8_experts = true;
  EXPECT_THAT([&] { resolve_run(resolved(config), 50); },
              testing::ThrowsMessage<ConfigError>(testing::StartsWith(
                  "train.fp8_experts = true: the model has no experts; remove the key")));
}

double mean_of_last(const std::vector<double>& losses, size_t count) {
  const auto first = losses.end() - static_cast<ptrdiff_t>(count);
  return std::accumulate(first, losses.end(), 0.0) / static_cast<double>(count);
}

// The loss of one step depends on choices of experts that rounding changes: other compilers alone
// make a difference of 1% and more.
TEST(Fp8Experts, TrainsAlmostLikeTheWiderType) {
  const Outcome wide = run(config_of({"train.fp8=off"}), 30);
  const Outcome narrow = run(fp8_config(), 30);
  EXPECT_LT(narrow.losses.back(), 0.7 * narrow.losses.front());
  EXPECT_NEAR(mean_of_last(narrow.losses, 10) / mean_of_last(wide.losses, 10), 1.0, 0.03);
  EXPECT_NE(narrow.losses.front(), run(config_of({}), 1).losses.front());
}

/// The least signal-to-noise ratio of a parameter's gradient, in dB. After one step a first moment
/// is the gradient, times a factor that is the same for all.
double least_snr(const Outcome& exact, const Outcome& found) {
  double least = 1000;
  for (size_t i = 0; i < exact.state.exp_avg.size(); ++i) {
    const auto& a = exact.state.exp_avg[i];
    const auto& b = found.state.exp_avg[i];
    least = std::min(least, snr_db({a.begin(), a.end()}, {b.begin(), b.end()}));
  }
  return least;
}

// Experts are chosen in turn, so that rounding changes no choice.
TEST(Fp8Experts, GradientsHaveLittleNoise) {
  const Outcome wide =
      run(config_of({"train.fp8=off", "moe.force_balance=true", "train.dtype=float32"}), 1);
  const Outcome narrow = run(fp8_config({"moe.force_balance=true", "train.dtype=float32"}), 1);
  const double snr = least_snr(wide, narrow);
  EXPECT_GT(snr, 15);
  EXPECT_LT(snr, 60);
}

/// A layout and how far its gradients may be from those of one rank.
struct Layout {
  Keys keys;
  double least_snr = 0;  ///< dB
};

constexpr double kSums = 110;
constexpr double kRounded = 40;

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> list = {
      {{"parallel.ranks=2"}, kSums},
      {{"parallel.ranks=2", "parallel.shard=gradients"}, kSums},
      {{"parallel.ranks=2", "parallel.shard=parameters", "memory.recompute=full"}, kSums},
      {{"parallel.ranks=2", "parallel.expert=2"}, kSums},
      {{"parallel.ranks=4", "parallel.expert=2", "parallel.shard=gradients"}, kSums},
      {{"parallel.ranks=4", "parallel.expert=2", "parallel.shard=optimizer",
        "memory.recompute=norms"},
       kSums},
      {{"parallel.ranks=2", "parallel.tensor=2", "parallel.sequence_parallel=true",
        "parallel.expert=2", "memory.recompute=norms"},
       kRounded},
      {{"parallel.ranks=4", "parallel.tensor=2", "parallel.sequence_parallel=true",
        "parallel.expert=4"},
       kRounded},
      {{"parallel.ranks=4", "parallel.pipeline=2", "parallel.expert=2"}, kSums},
      {{"parallel.ranks=4", "parallel.pipeline=2", "parallel.schedule=zb-h1", "parallel.expert=2",
        "memory.recompute=full"},
       kSums},
      {{"parallel.ranks=2", "parallel.expert=2", "model.mtp_depth=1"}, kSums},
      {{"parallel.ranks=2", "parallel.expert=2", "model.family=nemotron_h", "model.pattern=*E*E"},
       kSums},  // experts without a gate
      {{"parallel.ranks=2", "parallel.context=2", "parallel.expert=2"}, kRounded},
      {{"parallel.ranks=2", "parallel.expert_tensor=2", "model.expert_ffn=256"}, kRounded}};
  return list;
}

/// Rows travel as FP8.
constexpr const char* kDispatch = "train.fp8_dispatch=true";

/// Whether ranks of a layout have different experts.
bool sends_rows(const Keys& layout) {
  return std::ranges::any_of(
      layout, [](const std::string& key) { return key.starts_with("parallel.expert"); });
}

Keys joined(Keys keys, const Keys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

// Rows of experts have the same copies on any ranks, and scales are powers of two: another block
// changes only elements far below its largest one. So what differs is the order of sums, unless it
// changes what is rounded to FP8, as sums over ranks and attention in steps do. Choices of experts
// are drawn, and uneven.
TEST(Fp8Experts, LayoutsHaveTheGradientsOfOneRank) {
  for (const Layout& layout : thinned(layouts(), 3)) {
    SCOPED_TRACE(testing::PrintToString(layout.keys));
    const Keys common{"moe.force_skew=1", "train.dtype=float32", "train.fp8_filter=*.attention.*"};
    Keys one_rank = common;
    for (const std::string& key : layout.keys) {
      if (key.starts_with("model.")) {
        one_rank.push_back(key);
      }
    }
    const Outcome expected = run(fp8_config(one_rank), 1);
    std::vector<Keys> ways{layout.keys};
    if (sends_rows(layout.keys)) {
      ways.push_back(joined(layout.keys, {kDispatch}));
    }
    for (const Keys& keys : ways) {
      const Outcome found = run(fp8_config(joined(keys, common)), 1);
      EXPECT_NEAR(found.losses[0] / expected.losses[0], 1.0, 1e-5);
      EXPECT_GT(least_snr(expected, found), layout.least_snr);
    }
  }
}

TEST(Fp8Experts, NoPassChangesABit) {
  for (const Layout& layout : thinned(layouts(), 3)) {
    SCOPED_TRACE(testing::PrintToString(layout.keys));
    const auto outcome = [&](const Keys& more) {
      return run(fp8_config(joined(layout.keys, more)), 2);
    };
    const Outcome off = outcome({"overlap.mode=off", "memory.recompute=none"});
    expect_same_bits(off, outcome({"overlap.mode=auto"}));
    expect_same_bits(off, outcome({"memory.recompute=norms"}));
    expect_same_bits(off, outcome({"memory.recompute=full", "overlap.mode=off"}));
  }
}

// Shards of the matrices of experts begin and end anywhere in their blocks.
TEST(Fp8Experts, GathersOfWeightCopiesChangeNoBit) {
  for (const char* const shard : {"optimizer", "gradients", "parameters"}) {
    for (const char* const expert : {"1", "2"}) {
      const Keys keys{"parallel.ranks=6",
                      std::string("parallel.shard=") + shard,
                      std::string("parallel.expert=") + expert,
                      "train.global_batch=12",
                      "train.microbatch=1",
                      "train.sequence=128"};
      const RunPlan plan = plan_of(fp8_config(keys));
      EXPECT_GT(num_tasks(plan, "quantize_part"),
                num_tasks(plan_of(config_of(keys)), "quantize_part"));
      const Outcome copies = run(fp8_config(keys), 2);
      expect_same_bits(copies, run(fp8_config(joined(keys, {"train.fp8_param_gather=false"})), 2));
    }
  }
}

TEST(Fp8Experts, StepsWithoutRoomRunAgainWithTheSameBits) {
  const Keys keys{"parallel.ranks=2", "parallel.expert=2", "model.init_std=0.3"};
  const Outcome ample = run(fp8_config(keys), 2);
  const Outcome tight = run(fp8_config(joined(keys, {"moe.capacity=0.3"})), 2);
  expect_same_bits(ample, tight);
}

TEST(Fp8Experts, RehearsesTheSumsOfHopper) {
  const Keys keys{"train.global_batch=2", "moe.force_balance=true"};
  const Outcome ideal = run(fp8_config(keys), 1);
  const Outcome hopper = run(fp8_config(joined(keys, {"train.fp8_sums=hopper"})), 1);
  EXPECT_NE(hopper.state.exp_avg, ideal.state.exp_avg);
  EXPECT_NEAR(hopper.losses[0] / ideal.losses[0], 1.0, 1e-3);
  EXPECT_NEAR(hopper.grad_norms[0] / ideal.grad_norms[0], 1.0, 0.01);
}

// A forward alone makes copies by rows only.
TEST(Fp8Experts, EvaluationsHaveTheLossOfTheForward) {
  for (const Keys& layout :
       {Keys{},
        {"parallel.ranks=2", "parallel.expert=2"},
        {"parallel.ranks=2", "parallel.expert=2", "train.fp8_dispatch=true"}}) {
    const RunConfig config = resolved(fp8_config(layout));
    Engine engine(plan_run(resolve_run(config, 50)), {.poison_step_arena = true});
    engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
    const NoisySequences source(config.train.sequence);
    const BatchShape shape{.num_ranks = config.parallel.data,
                           .num_microbatches = num_microbatches(config),
                           .microbatch = microbatch_sequences(config)};
    BatchLoader loader(source, {.shape = shape});
    BatchLoader again(source, {.shape = shape});
    const double evaluated = engine.evaluate(*loader.next()).loss;
    const StepResult step = engine.train_step(*again.next(), config.optimizer, 1e-3, 1);
    EXPECT_NEAR(evaluated / step.loss, 1.0, 1e-6);
  }
}

StepTallies tallies_of(RunConfig config) {
  config = resolved(config);
  Engine engine(plan_run(resolve_run(config, 50)), {.poison_step_arena = true});
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = config.parallel.data,
                                        .num_microbatches = num_microbatches(config),
                                        .microbatch = microbatch_sequences(config)}});
  engine.train_step(*loader.next(), config.optimizer, 1e-3, 1);
  return engine.tallies();
}

TEST(Fp8Experts, RowsInBlocksDoNotTravelAsFp8) {
  const RunConfig config =
      fp8_config({"parallel.ranks=2", "parallel.expert=2", kDispatch, "moe.exchange=blocks"});
  EXPECT_THAT(message_of<ConfigError>([&] { resolve_run(resolved(config), 50); }),
              ::testing::StartsWith("train.fp8_dispatch = true: rows that are exchanged in blocks "
                                    "(moe.exchange, as between hosts) do not travel as FP8"));
}

TEST(Fp8Experts, RowsOverHostsOfOneRankDoNotTravelAsFp8) {
  const RunConfig config = fp8_config({"parallel.ranks=2", "parallel.expert=2", kDispatch,
                                       "moe.exchange=hosts", "moe.exchange_hosts=2"});
  EXPECT_THAT(message_of<ConfigError>([&] { resolve_run(resolved(config), 50); }),
              ::testing::StartsWith("train.fp8_dispatch = true: with moe.exchange_hosts = 2 each "
                                    "host has one rank of a group"));
}

// Elements of rows and of columns, and none of the padding, also where rows come from other ranks.
TEST(Fp8Experts, CountsWhatCopiesLose) {
  for (const Keys& layout :
       {Keys{},
        {"parallel.ranks=2", "parallel.expert=2"},
        {"parallel.ranks=2", "parallel.expert=2", "train.fp8_dispatch=true"}}) {
    const RunConfig config = fp8_config(joined(layout, {"train.fp8_watch=1", "moe.watch=0"}));
    int64_t elems = 0;
    int64_t sites = 0;
    for (const Tally& tally : tallies_of(config).tallies) {
      if (tally.place.kind == TallyKind::kFp8Losses && tally.place.site == "layers.1.moe.fc1" &&
          tally.place.factor == "x") {
        elems += tally.values[Fp8Tally::kElems];
        EXPECT_EQ(tally.values[Fp8Tally::kSaturated], 0);
      }
      sites += tally.place.site.find(".moe.fc") != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(elems, 2 * 128 * 8 * 64 * 2);  // in both copies; tokens of the step, experts of each
    EXPECT_EQ(sites % (2 * 2 * 3), 0);
    EXPECT_GT(sites, 0);
    expect_same_bits(run(fp8_config(layout), 1), run(config, 1));
  }
}

// Rows that travel as FP8 (train.fp8_dispatch).

/// Layouts whose ranks have different experts.
std::vector<Keys> exchanging_layouts() {
  std::vector<Keys> list;
  for (const Layout& layout : layouts()) {
    if (sends_rows(layout.keys)) {
      list.push_back(layout.keys);
    }
  }
  for (const Keys& keys : std::vector<Keys>{
           {"parallel.ranks=4", "parallel.expert=4"},
           {"parallel.ranks=4", "parallel.expert=2", "parallel.expert_tensor=2",
            "model.expert_ffn=256"},
           {"parallel.ranks=4", "parallel.pipeline=2", "parallel.virtual_stages=2",
            "parallel.schedule=interleaved", "parallel.expert=2", "model.layers=4",
            "model.pattern=attention+moe*4"},
           {"parallel.ranks=2", "parallel.expert=2", "moe.capacity=0.3", "moe.on_overflow=drop"},
           {"parallel.ranks=2", "parallel.expert=2", "moe.capacity=0.4", "model.init_std=0.3"},
           {"parallel.ranks=2", "parallel.expert=2", "moe.expert_capacity=0.7"},
           {"parallel.ranks=2", "parallel.expert=2", "model.shared_ffn=128"},
           {"parallel.ranks=4", "parallel.expert=4", "moe.exchange=hosts", "moe.exchange_hosts=2"},
           {"parallel.ranks=8", "parallel.pipeline=2", "parallel.expert=4", "moe.exchange=hosts",
            "moe.exchange_hosts=2", "moe.capacity=0.4", "model.init_std=0.3"}}) {
    list.push_back(keys);
  }
  return list;
}

double dispatched_bytes(const RunPlan& plan) {
  double bytes = 0;
  const Program& program = plan.ranks[0].programs[0];
  for (const Task& task : program.tasks) {
    const OpSpec& spec = program.spec(task);
    bytes += spec.op == "dispatch_rows" ? spec_cost(spec).comm_bytes : 0;
  }
  return bytes;
}

TEST(Fp8Dispatch, RowsTravelWithHalfTheBytes) {
  constexpr int64_t kLayers = 2;
  constexpr int64_t kMicrobatches = 2;
  constexpr int64_t kRanks = 2;
  const Keys keys{"parallel.ranks=2", "parallel.expert=2"};
  const RunPlan values = plan_of(fp8_config(keys));
  const RunPlan copies = plan_of(fp8_config(joined(keys, {kDispatch})));
  constexpr int64_t kEach = 2 * kRanks * kLayers * kMicrobatches;
  EXPECT_EQ(num_tasks(values, "quantize_grouped"), 2 * kEach);
  EXPECT_EQ(num_tasks(copies, "quantize_grouped"), kEach);
  for (const char* const op : {"quantize_gathered", "transpose_grouped", "dispatch_rows"}) {
    EXPECT_EQ(num_tasks(copies, op), kEach) << op;
  }
  EXPECT_EQ(num_tasks(copies, "gather_rows"), 0);
  // Of 128 elements: weights and scales of 4 bytes each; gradients come without weights.
  constexpr double kRows = 2 * 64 * 2;
  EXPECT_EQ(dispatched_bytes(values), kLayers * kMicrobatches * kRows * (260 + 256));
  EXPECT_EQ(dispatched_bytes(copies), kLayers * kMicrobatches * kRows * (136 + 132));
}

TEST(Fp8Dispatch, DoesNothingWhereAllRanksHaveAllExperts) {
  const RunPlan plan = plan_of(fp8_config({kDispatch}));
  EXPECT_EQ(num_tasks(plan, "quantize_gathered"), 0);
  expect_same_bits(run(fp8_config(), 1), run(fp8_config({kDispatch}), 1));
}

TEST(Fp8Dispatch, IsInTheTableOfProducts) {
  const auto table = [](const Keys& more) {
    return describe_fp8(resolve_run(
        resolved(fp8_config(joined({"parallel.ranks=2", "parallel.expert=2"}, more))), 50));
  };
  EXPECT_THAT(table({kDispatch}),
              testing::AllOf(testing::HasSubstr("2 experts  f8e4m3; x travels in FP8\n"),
                             testing::HasSubstr("2 experts  f8e4m3; dy travels in FP8\n")));
  EXPECT_THAT(table({}), testing::Not(testing::HasSubstr("travels")));
  EXPECT_THAT(table({kDispatch, "train.fp8_filter=*.moe.fc1"}),
              testing::HasSubstr("bfloat16 (kept by \"*.moe.fc1\"); x travels in bfloat16\n"));
}

// Rows of another width stay as they are, and so do the products.
TEST(Fp8Dispatch, RowsThatAreNoWholeBlocksStay) {
  const RunConfig config =
      fp8_config({"parallel.ranks=2", "parallel.expert=2", "model.width=192", kDispatch});
  EXPECT_EQ(num_tasks(plan_of(config), "quantize_gathered"), 0);
  EXPECT_THAT(describe_fp8(resolve_run(resolved(config), 50)),
              testing::HasSubstr("bfloat16 (192 inputs: no multiple of 128); x travels in "
                                 "bfloat16\n"));
}

bool is_of_experts(const std::string& parameter) {
  return parameter.find("moe.fc1") != std::string::npos ||
         parameter.find("moe.fc2") != std::string::npos;
}

/// How far weight gradients may be from those of columns of the values, in dB: elements differ only
/// where they are subnormal in FP8, below 2^-14 of the largest of their block. Found: at least 136.
constexpr double kColumnsOfRows = 120;

// Forward and dgrad read the same bits. So do all weight gradients but those of experts.
TEST(Fp8Dispatch, ForwardAndDgradHaveTheBitsOfRoundingWhatArrives) {
  int changed = 0;
  for (const Keys& layout : thinned(exchanging_layouts(), 4)) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const Keys keys = joined(layout, {"moe.force_skew=1", "optimizer.clip_norm=0"});
    Outcome values = run(fp8_config(keys), 1);
    const RunConfig config = fp8_config(joined(keys, {kDispatch}));
    const RunPlan plan = plan_of(config);
    EXPECT_GT(num_tasks(plan, "quantize_gathered"), 0);
    Outcome copies = run(config, 1);
    EXPECT_EQ(values.losses, copies.losses);
    for (const Parameter& parameter : plan.layout.parameters) {
      const auto gradient = [&](Outcome& outcome) {
        const auto found = elements_of(plan.layout, parameter.name, outcome.state.exp_avg);
        return std::vector<double>(found.begin(), found.end());
      };
      const std::vector<double> a = gradient(values);
      const std::vector<double> b = gradient(copies);
      if (is_of_experts(parameter.name)) {
        EXPECT_GT(snr_db(a, b), kColumnsOfRows) << parameter.name;
        changed += a == b ? 0 : 1;
      } else {
        EXPECT_TRUE(a == b) << parameter.name;
      }
    }
  }
  EXPECT_GT(changed, 0) << "no element of a column was rounded otherwise";
}

TEST(Fp8Dispatch, NoPassChangesABit) {
  for (const Keys& layout : thinned(exchanging_layouts(), 4)) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const auto outcome = [&](const Keys& more) {
      return run(fp8_config(joined(joined(layout, {kDispatch}), more)), 2);
    };
    const Outcome off = outcome({"overlap.mode=off", "memory.recompute=none"});
    expect_same_bits(off, outcome({"overlap.mode=auto"}));
    expect_same_bits(off, outcome({"memory.recompute=norms"}));
    expect_same_bits(off, outcome({"memory.recompute=full", "overlap.mode=off"}));
  }
}

TEST(Fp8Dispatch, StepsWithoutRoomRunAgainWithTheSameBits) {
  const Keys keys{"parallel.ranks=2", "parallel.expert=2", "model.init_std=0.3", kDispatch};
  const Outcome ample = run(fp8_config(keys), 2);
  const Outcome tight = run(fp8_config(joined(keys, {"moe.capacity=0.3"})), 2);
  expect_same_bits(ample, tight);
}

TEST(Fp8Dispatch, TrainsLikeRowsThatTravelAsTheyAre) {
  const Keys keys{"parallel.ranks=2", "parallel.expert=2"};
  const Outcome values = run(fp8_config(keys), 30);
  const Outcome copies = run(fp8_config(joined(keys, {kDispatch})), 30);
  EXPECT_LT(copies.losses.back(), 0.7 * copies.losses.front());
  EXPECT_NEAR(mean_of_last(copies.losses, 10) / mean_of_last(values.losses, 10), 1.0, 0.03);
}

}  // namespace
}  // namespace braid
