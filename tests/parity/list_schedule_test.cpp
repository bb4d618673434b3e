#include <gtest/gtest.h>

#include <string>

#include "parity/layout_config.h"
#include "plan/run_spec.h"
#include "support/engine_runs.h"
#include "support/thinned.h"

namespace braid {
namespace {

class ListScheduleParity : public testing::TestWithParam<Layout> {};

// Another order of tasks on every rank, the same kernels and the same order of every sum: weights,
// optimizer state, losses and gradient norms of two steps are the same bits.
TEST_P(ListScheduleParity, ChangesNoBit) {
  constexpr int64_t kSteps = 2;
  RunConfig config = config_of(GetParam());
  config.overlap.mode = "off";
  const Outcome off = run(config, kSteps);
  config.overlap.mode = "auto";
  config.overlap.cost = "h200x8";
  config.overlap.list_schedule = true;
  const RunPlan plan = plan_run(resolve_run(config, 50));
  EXPECT_TRUE(std::ranges::any_of(plan.ranks.front().passes, [](const PassRecord& pass) {
    return pass.name == "list_schedule" && pass.report.changed;
  }));
  expect_same_bits(run(config, kSteps), off);
}

// On CPUs, whose sums copies and a sum on each rank repeat bit for bit.
TEST_P(ListScheduleParity, NeitherDoEnginesOfChoice) {
  constexpr int64_t kSteps = 2;
  RunConfig config = config_of(GetParam());
  config.overlap.mode = "off";
  const Outcome off = run(config, kSteps);
  config.overlap.mode = "auto";
  config.overlap.cost = "h200x8";
  config.overlap.comm_engine = "hidden";
  for (const bool orders : {false, true}) {
    config.overlap.list_schedule = orders;
    expect_same_bits(run(config, kSteps), off);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ListScheduleParity,
    testing::ValuesIn(thinned<Layout>(
        {Layout{kLlamaModel, "ranks=2 pipeline=2 train.global_batch=16"},
         Layout{kLlamaModel, "ranks=2 pipeline=2 schedule=interleaved virtual_stages=2"},
         Layout{kLlamaModel, "ranks=2 pipeline=2 schedule=zb-v virtual_stages=2"},
         Layout{kLlamaModel, "ranks=2 pipeline=2 schedule=dualpipe-v virtual_stages=2"},
         Layout{kLlamaModel, "ranks=2 tensor=2 sequence_parallel=true memory.recompute=norms"},
         Layout{kLlamaModel, "ranks=2 tensor=2"},
         Layout{kLlamaModel,
                "ranks=4 tensor=2 data=2 sequence_parallel=true train.global_batch=16 "
                "memory.recompute=norms"},
         Layout{kLlamaModel, "ranks=2 context=2 memory.recompute=full"},
         Layout{kLlamaModel, "ranks=2 shard=parameters"},
         Layout{kLlamaModel, "ranks=4 pipeline=2 shard=gradients grad_reduce_dtype=bfloat16"},
         Layout{kGpt2Model,
                "ranks=4 tensor=2 pipeline=2 shard=optimizer memory.offload_layers=1 "
                "memory.offload_min_bytes=1"}},
        6)));

// Some ranks have no matrix of a layer: what they order must suit ranks that have.
INSTANTIATE_TEST_SUITE_P(MatricesOfFewRanks, ListScheduleParity,
                         testing::Values(Layout{
                             kLlamaModel,
                             "ranks=8 shard=optimizer model.layers=2 optimizer.name=muon "
                             "optimizer.muon_steps=1"}));

}  // namespace
}  // namespace braid
