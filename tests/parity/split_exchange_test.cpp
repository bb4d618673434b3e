// Exchanges of heads between context ranks under halves of an attention: what is cut may be rounded
// in another way, so that those layouts are held against one rank. What only moves changes no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "parity/layout_config.h"
#include "plan/run_plan.h"
#include "support/engine_runs.h"
#include "support/thinned.h"
#include "verify/verify_layout.h"

namespace braid {
namespace {

/// A microbatch of one sequence, of which each rank has a run of either half.
constexpr const char* kHalves = " train.microbatch=1 train.sequence=32";
constexpr const char* kCut =
    " overlap.mode=manual overlap.overlap_context_comm=true overlap.split_ops=true "
    "overlap.cost=h200x8";

std::vector<Layout> layouts(const std::string& overlap) {
  std::vector<Layout> list;
  for (const char* const model : {kLlamaModel, kGpt2Model}) {
    for (const char* const layout :
         {"ranks=2 context=2", "ranks=2 context=2 memory.recompute=norms",
          "ranks=2 context=2 memory.recompute=full shard=parameters",
          "ranks=2 context=2 memory.offload_layers=2 memory.offload_min_bytes=1",
          "ranks=4 context=2 pipeline=2", "ranks=4 context=2 pipeline=2 schedule=zb-h1",
          "ranks=4 context=2 shard=optimizer train.dtype=bfloat16"}) {
      list.push_back({model, layout + std::string(" context_method=a2a") + kHalves + overlap});
    }
  }
  list.push_back({kWindowsModel, std::string("ranks=2 context=2 context_method=a2a "
                                             "model.sliding_window=21") +
                                     kHalves + overlap});
  list.push_back(
      {kGpt2Model, std::string("ranks=4 context=4 context_method=a2a") + kHalves + overlap});
  return list;
}

class SplitExchangeParity : public testing::TestWithParam<Layout> {};

// The tolerances of the grid of layouts (grid_test.cpp), for its reasons.
TEST_P(SplitExchangeParity, EqualsOneRank) {
  const RunPlan plan = plan_run(resolve_run(config_of(GetParam()), 0));
  EXPECT_TRUE(std::ranges::any_of(plan.ranks.front().passes, [](const PassRecord& pass) {
    return pass.name == "split_exchange" && pass.report.changed;
  }));
  const LayoutComparison comparison =
      compare_with_one_rank(resolve_run(config_of(GetParam()), 0), {});
  EXPECT_LT(comparison.loss_f64, 1e-13);
  for (const TensorDifference& gradient : comparison.gradients) {
    EXPECT_LT(gradient.difference, 1e-11) << "gradient of " << gradient.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, SplitExchangeParity,
                         testing::ValuesIn(thinned(layouts(kCut), 15)));

class ExchangeBeside : public testing::TestWithParam<Layout> {};

TEST_P(ExchangeBeside, ChangesNoBit) {
  constexpr int64_t kSteps = 2;
  const auto with = [](const std::string& overlap) {
    Layout layout = GetParam();
    layout.overrides += overlap;
    return run(config_of(layout), kSteps);
  };
  const Outcome off = with(" overlap.mode=off");
  expect_same_bits(with(" overlap.mode=auto"), off);
  expect_same_bits(with(" overlap.mode=manual overlap.overlap_context_comm=true"), off);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ExchangeBeside, testing::ValuesIn(thinned(layouts(""), 8)));

}  // namespace
}  // namespace braid
