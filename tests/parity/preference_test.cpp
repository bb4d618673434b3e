#include <gtest/gtest.h>

#include <string>

#include "parity/layout_config.h"
#include "plan/run_spec.h"
#include "verify/verify_layout.h"

namespace braid {
namespace {

class PreferenceGrid : public testing::TestWithParam<Layout> {};

// The bounds are those of grid_test.cpp. Rounding of sums of a sequence, about 60, moves z by less
// than 1e-6 and a loss near log 2 as much.
TEST_P(PreferenceGrid, EqualsOneRank) {
  Layout layout = GetParam();
  if (layout.overrides.find("preference.loss") == std::string::npos) {
    layout.overrides += " preference.loss=dpo";
  }
  const LayoutComparison comparison = compare_with_one_rank(resolve_run(config_of(layout), 0), {});
  EXPECT_LT(comparison.loss_f64, 1e-13);
  for (const TensorDifference& gradient : comparison.gradients) {
    EXPECT_LT(gradient.difference, 1e-11) << "gradient of " << gradient.name;
  }
  EXPECT_FALSE(comparison.gradients.empty());
  EXPECT_LT(comparison.worst_loss(), 4e-6);
  EXPECT_LT(comparison.grad_norm, 1e-5);
  EXPECT_LT(comparison.worst_weight(), 2e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, PreferenceGrid,
    testing::Values(
        Layout{kLlamaModel, "ranks=2"}, Layout{kLlamaModel, "ranks=4 shard=optimizer"},
        Layout{kGpt2Model, "ranks=4 shard=gradients preference.label_smoothing=0.1"},
        Layout{kQwenModel, "ranks=4 shard=parameters preference.loss=ipo preference.beta=0.4"},
        Layout{kLlamaModel, "ranks=4 tensor=2 shard=optimizer preference.loss=hinge"},
        Layout{kQwenModel, "ranks=4 tensor=4 sequence_parallel=true preference.beta=0.5"},
        Layout{kLlamaModel, "ranks=2 pipeline=2"},
        Layout{kGpt2Model, "ranks=4 pipeline=2 tensor=2 sequence_parallel=true schedule=zb-h1"},
        Layout{kQwenModel,
               "ranks=4 pipeline=2 virtual_stages=2 schedule=interleaved "
               "preference.loss=ipo"},
        Layout{kLlamaModel, "ranks=2 context=2"},
        Layout{kLlamaModel,
               "ranks=4 context=4 context_method=a2a+ring context_inner=2 "
               "train.sequence=16"},
        Layout{kLlamaModel,
               "ranks=8 context=2 tensor=2 pipeline=2 sequence_parallel=true "
               "preference.loss=ipo"},
        Layout{kLlamaModel,
               "ranks=4 tensor=2 lora.rank=3 memory.recompute=full train.microbatch=4"},
        Layout{kExpertsModel, "ranks=4 expert=2 tensor=2 sequence_parallel=true"},
        Layout{kLlamaModel,
               "ranks=2 tensor=2 sequence_parallel=true overlap.mode=manual "
               "overlap.pair_forward_backward=halves train.microbatch=4"}));

}  // namespace
}  // namespace braid
