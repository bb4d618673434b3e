#include "tune/estimate_layout.h"

#include <gtest/gtest.h>

#include <utility>

#include "plan/memory_needs.h"
#include "plan/model_setup.h"
#include "plan/run_spec.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "tune/layout.h"
#include "tune/small_search.h"

namespace braid {
namespace {

/// Cheap layers before expensive ones, on the devices of one node.
struct PatternRun {
  explicit PatternRun(const char* pattern, int64_t mtp_depth = 0) {
    config.model.layers.reset();
    config.model.pattern = pattern;
    config.model.mtp_depth = mtp_depth;
    config.model.ffn = 2048;
    config.parallel.pipeline = 4;
    validate(config);
    config = resolved(config);
    spec = resolve_model(config.model, config.train.sequence, 0);
  }

  RunConfig config = small_search_run(4);
  ModelSpec spec;
  std::unique_ptr<CostModel> model = make_analytic_model(parse_cluster("h100x4"));
};

TEST(LayerPrices, AreThoseOfEachKind) {
  const PatternRun run("attention*2 mlp*2 attention+mlp*4");
  const LayerPrices prices = price_layers(run.config, run.spec, 0, {.pipeline = 4}, *run.model);
  ASSERT_EQ(prices.kinds.size(), 3u);
  const PartPrice& attention = prices.kinds[0];
  const PartPrice& mlp = prices.kinds[1];
  const PartPrice& both = prices.kinds[2];
  EXPECT_EQ(attention.parameters, 4 * 256 * 256 + 256);
  EXPECT_EQ(mlp.parameters, 3 * 256 * 2048 + 256);
  EXPECT_EQ(both.parameters, attention.parameters + mlp.parameters);
  // In order on one stream.
  EXPECT_NEAR(both.forward_ns, attention.forward_ns + mlp.forward_ns, 0.02 * both.forward_ns);
  EXPECT_NEAR(both.backward_ns, attention.backward_ns + mlp.backward_ns, 0.02 * both.backward_ns);
  EXPECT_NEAR(both.wgrad_ns, attention.wgrad_ns + mlp.wgrad_ns, 0.02 * both.wgrad_ns);
  EXPECT_NEAR(both.kept_bytes, attention.kept_bytes + mlp.kept_bytes, 0.1 * both.kept_bytes);
  EXPECT_GT(attention.kept_bytes, 0);
  EXPECT_GT(mlp.kept_bytes, 0);
}

TEST(LayerPrices, CountMultiTokenPredictionWithTheHead) {
  const Layout layout{.pipeline = 4};
  const PatternRun plain("attention*6 mlp*2");
  const PatternRun mtp("attention*6 mlp*2", 1);
  const LayerPrices without = price_layers(plain.config, plain.spec, 0, layout, *plain.model);
  const LayerPrices with = price_layers(mtp.config, mtp.spec, 0, layout, *mtp.model);
  const PartPrice& layer = without.kinds[1];  // the last one
  EXPECT_EQ(with.kinds[1].parameters, layer.parameters);
  EXPECT_EQ(with.ends.parameters,
            without.ends.parameters + layer.parameters + 2 * 256 * 256 + 3 * 256);
  EXPECT_GT(with.ends.backward_ns, without.ends.backward_ns + layer.backward_ns);
}

TEST(LayoutEstimator, AddsUpTheKindsOfAStage) {
  for (const auto& [pattern, mtp_depth] :
       {std::pair("attention+mlp*8", 0), std::pair("attention*8 attention+mlp*4 mlp*4", 0),
        std::pair("attention*4 mlp*4", 1)}) {
    const PatternRun run(pattern, mtp_depth);
    const Layout layout{.pipeline = 4};
    const LayerPrices prices = price_layers(run.config, run.spec, 0, layout, *run.model);
    const LayoutEstimator estimator(run.config, run.spec, *run.model);
    const double simulated = static_cast<double>(
        SimulatedRun(resolve_run(with_layout(run.config, layout), 0), *run.model).step_ns());
    EXPECT_NEAR(estimator.step_ns(layout, prices), simulated, 0.15 * simulated) << pattern;
    EXPECT_LE(estimator.bounds(layout, prices).least_ns, simulated) << pattern;
  }
}

// Two moments of 4 bytes and a main weight for each of a rank's parameters, or of 2 bytes; Lion has
// one.
double arena_bytes(const LayoutEstimate& estimate) {
  return estimate.peak_bytes - estimate.device_bytes;
}

TEST(LayoutEstimator, CountsTheMomentsOfTheOptimizer) {
  PatternRun run("attention+mlp*4");
  const auto bytes_of = [&](const Layout& layout) {
    const LayerPrices prices = price_layers(run.config, run.spec, 0, layout, *run.model);
    return arena_bytes(LayoutEstimator(run.config, run.spec, *run.model).bounds(layout, prices));
  };
  const Layout plain{.data = 4};
  const Layout narrow{.data = 4, .moments = DType::kBF16};
  const LayerPrices prices = price_layers(run.config, run.spec, 0, plain, *run.model);
  const double elems = 4 * prices.kinds[0].parameters + prices.ends.parameters;
  EXPECT_EQ(bytes_of(plain) - bytes_of(narrow), 4 * elems);
  const double with_two = bytes_of(plain);
  run.config.optimizer.name = "lion";
  EXPECT_EQ(with_two - bytes_of(plain), 4 * elems);
}

// 2 bytes less of gradients, in any shards, and half the time of their reductions.
TEST(LayoutEstimator, CountsNarrowGradients) {
  PatternRun run("attention+mlp*4");
  run.config.train.dtype = "bfloat16";
  for (const ShardKind shard : {ShardKind::kNone, ShardKind::kGradients}) {
    const Layout wide{.data = 4, .shard = shard};
    Layout narrow = wide;
    narrow.main_grads = DType::kBF16;
    const LayerPrices prices = price_layers(run.config, run.spec, 0, wide, *run.model);
    const LayoutEstimator estimator(run.config, run.spec, *run.model);
    const double elems = 4 * prices.kinds[0].parameters + prices.ends.parameters;
    const double unit = std::max(prices.kinds[0].parameters, prices.ends.parameters);
    EXPECT_NEAR(
        estimator.bounds(wide, prices).peak_bytes - estimator.bounds(narrow, prices).peak_bytes,
        2 * (shard == ShardKind::kNone ? elems : elems / 4 + unit), 1);
    EXPECT_LT(estimator.step_ns(narrow, prices), estimator.step_ns(wide, prices));
    const double updates = price_layers(run.config, run.spec, 0, wide, *run.model).ends.update_ns;
    EXPECT_LT(price_layers(run.config, run.spec, 0, narrow, *run.model).ends.update_ns, updates);
  }
}

// Copies that share their state update a part of it each.
TEST(LayoutEstimator, CountsTheStateThatCopiesShare) {
  const PatternRun run("attention+mlp*4");
  const LayoutEstimator estimator(run.config, run.spec, *run.model);
  Layout layout{.data = 4, .shard_replicas = 2, .shard = ShardKind::kOptimizer};
  const LayerPrices prices = price_layers(run.config, run.spec, 0, layout, *run.model);
  const double copied = arena_bytes(estimator.bounds(layout, prices));
  layout.shard_over_replicas = true;
  const double elems = 4 * prices.kinds[0].parameters + prices.ends.parameters;
  EXPECT_EQ(copied - arena_bytes(estimator.bounds(layout, prices)), 12 * elems / 4);
}

void expect_estimate_of_experts(const RunConfig& config, const Layout& layout) {
  const ModelSpec spec = resolve_model(config.model, config.train.sequence, 0);
  const auto model = make_analytic_model(parse_cluster("h100x4"));
  const LayerPrices prices = price_layers(config, spec, 0, layout, *model);
  EXPECT_EQ(prices.kinds.back().expert_parameters, 32 / layout.expert * 3 * 256 * 512);
  const SimulatedRun simulated(resolve_run(config, 0), *model);
  const LayoutEstimator estimator(config, spec, *model);
  const auto step_ns = static_cast<double>(simulated.step_ns());
  EXPECT_NEAR(estimator.step_ns(layout, prices), step_ns, 0.15 * step_ns);
  const auto planned_bytes =
      static_cast<double>(simulated.plan().ranks.front().memory.peak_bytes());
  EXPECT_NEAR(arena_bytes(estimator.bounds(layout, prices)), planned_bytes, 0.1 * planned_bytes);
}

/// What the layout's plan needs on the rank that needs most, and what is estimated.
void expect_device_bytes(const RunConfig& config, const Layout& layout) {
  SCOPED_TRACE(layout_name(layout));
  const ModelSpec spec = resolve_model(config.model, config.train.sequence, 0);
  const auto model = make_analytic_model(parse_cluster("h100x16"));
  const RunConfig run = resolved(with_layout(config, layout));
  const LayoutEstimate estimate =
      LayoutEstimator(run, spec, *model).bounds(layout, price_layers(run, spec, 0, layout, *model));
  const SimulatedRun simulated(resolve_run(run, 0), *model);
  int64_t needed = 0;
  int64_t device = 0;
  for (const RankPlan& rank : simulated.plan().ranks) {
    const int64_t bytes = rank_bytes(model->cluster().device, rank, run.runtime.repeatable);
    device = bytes > needed ? bytes - rank.memory.peak_bytes() : device;
    needed = std::max(needed, bytes);
  }
  const auto bytes = static_cast<double>(device);
  EXPECT_NEAR(estimate.device_bytes, bytes, 0.05 * bytes);
}

// Most of it are communicators: of data ranks, shards and their copies, the loss, the norm, tied
// tables, and messages in both directions.
TEST(LayoutEstimator, CountsTheCommunicatorsOfEveryGroup) {
  RunConfig config = small_search_run(16);
  config.model.layers = 8;
  config.train.global_batch = 16;
  config.runtime.repeatable = true;
  const Layout stages{.data = 4, .pipeline = 4, .shard = ShardKind::kOptimizer};
  Layout other = stages;
  expect_device_bytes(config, {.data = 16});
  expect_device_bytes(config, {.tensor = 2, .data = 8, .shard = ShardKind::kParameters});
  expect_device_bytes(config, stages);
  other.virtual_stages = 2;
  other.schedule = ScheduleKind::kInterleaved;
  expect_device_bytes(config, other);
  other.schedule = ScheduleKind::kZbV;
  expect_device_bytes(config, other);
  other = {.context = 2, .data = 8, .shard_replicas = 4, .shard = ShardKind::kOptimizer};
  expect_device_bytes(config, other);
  other.shard_over_replicas = true;
  expect_device_bytes(config, other);
  config.model.tied_embeddings = true;
  expect_device_bytes(config, {.data = 8, .pipeline = 2});
}

// Ranks that wait for their wgrads hold the gradients that these read, too: more than from forward
// to backward. In a V the last rank holds most.
TEST(LayoutEstimator, CountsWhatDelayedWeightGradientsHold) {
  RunConfig config = small_search_run(8);
  config.model.layers = 16;
  config.model.width = 1024;
  config.model.heads = 16;
  config.model.ffn = 4096;
  config.train.global_batch = 32;
  config.train.sequence = 4096;
  for (const ScheduleKind kind :
       {ScheduleKind::kZbH1, ScheduleKind::kZbV, ScheduleKind::kDualpipeV}) {
    const Layout layout{
        .pipeline = 8, .virtual_stages = kind == ScheduleKind::kZbH1 ? 1 : 2, .schedule = kind};
    SCOPED_TRACE(layout_name(layout));
    const RunConfig run = resolved(with_layout(config, layout));
    const ModelSpec spec = resolve_model(run.model, run.train.sequence, 0);
    const auto model = make_analytic_model(parse_cluster("h100x8"));
    const LayoutEstimate estimate = LayoutEstimator(run, spec, *model)
                                        .bounds(layout, price_layers(run, spec, 0, layout, *model));
    int64_t planned = 0;
    const SimulatedRun simulated(resolve_run(run, 0), *model);
    for (const RankPlan& rank : simulated.plan().ranks) {
      planned = std::max(planned, rank.memory.peak_bytes());
    }
    const auto bytes = static_cast<double>(planned);
    EXPECT_NEAR(arena_bytes(estimate), bytes, 0.1 * bytes);
  }
}

/// 32 experts in each layer of the pattern that has any.
RunConfig run_of_experts(const std::string& pattern) {
  RunConfig config = small_search_run(4);
  config.model.layers.reset();
  config.model.pattern = pattern;
  config.model.experts = 32;
  config.model.experts_per_token = 2;
  config.model.expert_ffn = 512;
  return config;
}

// Tensor ranks share the state of experts, and sum their gradients.
TEST(LayoutEstimator, CountsExpertsAsAllRanksOfAStageShareThem) {
  const RunConfig config = run_of_experts("attention+moe*4");
  for (const int64_t expert : {1, 4}) {
    const Layout layout{.tensor = 2,
                        .data = 2,
                        .expert = expert,
                        .shard = ShardKind::kOptimizer,
                        .sequence_parallel = true};
    expect_estimate_of_experts(resolved(with_layout(config, layout)), layout);
  }
}

// As DeepSeek-V3's: layers of each kind are priced alone, and those without experts have no ranks
// that share them.
TEST(LayoutEstimator, PricesLayersWithoutExpertsBesideOthers) {
  RunConfig config = run_of_experts("attention+mlp,attention+moe*3");
  config.moe.z_loss = 0.001;
  const Layout layout{.data = 4, .expert = 4, .shard = ShardKind::kOptimizer};
  expect_estimate_of_experts(resolved(with_layout(config, layout)), layout);
  config.train.fp8 = "block";
  config.train.fp8_experts = config.train.fp8_dispatch = true;
  const RunConfig narrow = resolved(with_layout(config, layout));
  const ModelSpec spec = resolve_model(narrow.model, narrow.train.sequence, 0);
  const auto model = make_analytic_model(parse_cluster("h200x4"));
  EXPECT_GT(price_layers(narrow, spec, 0, layout, *model).kinds.at(1).forward_ns, 0);
}

}  // namespace
}  // namespace braid
