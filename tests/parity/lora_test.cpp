#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "parity/layout_config.h"
#include "plan/run_spec.h"
#include "verify/verify_layout.h"

namespace braid {
namespace {

class LoraGrid : public testing::TestWithParam<Layout> {};

// The bounds are those of grid_test.cpp.
TEST_P(LoraGrid, EqualsOneRank) {
  Layout layout = GetParam();
  layout.overrides += " lora.rank=3 lora.alpha=5";
  const LayoutComparison comparison = compare_with_one_rank(resolve_run(config_of(layout), 0), {});
  EXPECT_LT(comparison.loss_f64, 1e-13);
  for (const TensorDifference& gradient : comparison.gradients) {
    EXPECT_LT(gradient.difference, 1e-11) << "gradient of " << gradient.name;
    EXPECT_NE(gradient.name.find(".lora_"), std::string::npos) << gradient.name;
  }
  EXPECT_FALSE(comparison.gradients.empty());
  EXPECT_LT(comparison.worst_loss(), 2e-6);
  EXPECT_LT(comparison.grad_norm, 1e-5);
  EXPECT_LT(comparison.worst_weight(), 2e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LoraGrid,
    testing::Values(
        Layout{kLlamaModel, "ranks=2 shard=optimizer"},
        Layout{kLlamaModel, "ranks=4 tensor=2 shard=gradients"},
        Layout{kQwenModel, "ranks=4 tensor=4 sequence_parallel=true"},
        Layout{kLlamaModel, "ranks=4 shard=parameters lora.targets=[\"q\",\"v\",\"up\"]"},
        Layout{kQwenModel, "ranks=4 pipeline=2 virtual_stages=2 schedule=interleaved"},
        Layout{kGpt2Model, "ranks=4 pipeline=2 tensor=2 sequence_parallel=true schedule=zb-h1"},
        Layout{kLlamaModel,
               "ranks=4 context=2 tensor=2 lora.targets=[\"k\",\"f*\"] "
               "memory.recompute=full"},
        Layout{kQwenModel, "ranks=4 tensor=4 sequence_parallel=true lora.dora=true"},
        Layout{kLlamaModel,
               "ranks=4 tensor=2 shard=parameters lora.dora=true lora.targets=[\"q\",\"v\",\"up\"] "
               "memory.recompute=norms"},
        Layout{kGpt2Model,
               "ranks=4 pipeline=2 tensor=2 sequence_parallel=true schedule=zb-h1 lora.dora=true"},
        Layout{kLlamaModel,
               "ranks=4 context=2 tensor=2 shard=optimizer lora.dora=true memory.recompute=full"},
        Layout{kLlamaModel,
               "ranks=4 pipeline=2 virtual_stages=2 schedule=interleaved shard=gradients "
               "lora.dora=true"}));

}  // namespace
}  // namespace braid
