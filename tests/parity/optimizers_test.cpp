#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parity/layout_config.h"
#include "plan/run_spec.h"
#include "verify/verify_layout.h"

namespace braid {
namespace {

/// The greatest difference of a weight after three steps from those of one rank, relative to its
/// tensor's largest element.
double weight_difference(const Layout& layout) {
  const LayoutComparison comparison = compare_with_one_rank(resolve_run(config_of(layout), 0), {});
  EXPECT_LT(comparison.worst_gradient(), 1e-11);
  EXPECT_LT(comparison.worst_loss(), 2e-6);
  EXPECT_LT(comparison.grad_norm, 1e-5);
  return comparison.worst_weight();
}

class SgdGrid : public testing::TestWithParam<Layout> {};

// SGD's updates are proportional to gradients, so weights are as near as these: some hundred
// roundings of f32.
TEST_P(SgdGrid, EqualsOneRank) {
  Layout layout = GetParam();
  layout.overrides += " optimizer.name=sgd optimizer.learning_rate=0.1";
  EXPECT_LT(weight_difference(layout), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SgdGrid,
    testing::Values(Layout{kLlamaModel, "ranks=2 optimizer.nesterov=true"},
                    Layout{kLlamaModel, "ranks=4 tensor=2 shard=optimizer optimizer.momentum=0"},
                    Layout{kExpertsModel, "ranks=4 expert=2 shard=gradients"},
                    Layout{kGpt2Model,
                           "ranks=8 tensor=2 shard=parameters shard_replicas=2 "
                           "shard_over_replicas=true optimizer.nesterov=true"},
                    Layout{kQwenModel, "ranks=4 pipeline=2 context=2"}));

class LionGrid : public testing::TestWithParam<Layout> {};

// Where a mean of gradients is near 0, its sign may be another one, and the weight moves the other
// way: by twice the learning rate of 1e-4 in each of three steps, relative to elements of 0.02 and
// more.
TEST_P(LionGrid, EqualsOneRank) {
  Layout layout = GetParam();
  layout.overrides += " optimizer.name=lion optimizer.learning_rate=0.0001 optimizer.beta2=0.99";
  EXPECT_LT(weight_difference(layout), 3e-2);
}

INSTANTIATE_TEST_SUITE_P(Layouts, LionGrid,
                         testing::Values(Layout{kLlamaModel, "ranks=2 shard=optimizer"}));

class MuonGrid : public testing::TestWithParam<Layout> {};

// In f32, Newton-Schulz keeps the relative rounding of small singular values, which it makes as
// large as the others: a direction is as near as 1e-4 of its largest element, three steps of
// 3e-4 * 0.2 * sqrt(48) / sqrt(24) beside elements of 0.02 and more. Norms are AdamW's, as in
// grid_test.cpp.
TEST_P(MuonGrid, EqualsOneRank) {
  Layout layout = GetParam();
  layout.overrides += " optimizer.name=muon optimizer.muon_dtype=float32";
  EXPECT_LT(weight_difference(layout), 2e-3);
}

// One layer and two steps of Newton-Schulz: each matrix is thirty tasks.
INSTANTIATE_TEST_SUITE_P(
    Layouts, MuonGrid,
    testing::Values(Layout{kLlamaModel,
                           "ranks=4 tensor=2 sequence_parallel=true shard=parameters "
                           "model.layers=1 optimizer.muon_steps=2 "
                           "optimizer.muon_scale=original"},
                    Layout{kGpt2Model,
                           "ranks=4 shard=gradients shard_replicas=2 model.layers=1 "
                           "optimizer.muon_steps=2"},
                    Layout{kLlamaModel,
                           "ranks=4 shard=parameters shard_replicas=2 shard_over_replicas=true "
                           "model.layers=1 optimizer.muon_steps=2"}));

// Each expert is a matrix of its own, of ranks that hold others; stages have matrices of their own
// layers, and copies of a tied embedding, which AdamW updates.
INSTANTIATE_TEST_SUITE_P(
    ExpertsAndPipelines, MuonGrid,
    testing::Values(Layout{kExpertsModel,
                           "ranks=4 expert=2 shard=gradients model.pattern=attention+moe,mlp "
                           "optimizer.muon_steps=2"},
                    Layout{kSharedExpertModel,
                           "ranks=4 tensor=2 sequence_parallel=true expert=4 shard=parameters "
                           "model.pattern=attention+moe,mlp optimizer.muon_steps=2"},
                    Layout{kQwenModel,
                           "ranks=4 pipeline=2 shard=optimizer schedule=zb-h1 model.layers=2 "
                           "optimizer.muon_steps=2"},
                    Layout{kLlamaModel,
                           "ranks=4 pipeline=2 tensor=2 virtual_stages=2 schedule=interleaved "
                           "model.layers=4 optimizer.muon_steps=1"},
                    Layout{kExpertsModel,
                           "ranks=4 pipeline=2 expert=2 shard=parameters "
                           "model.pattern=attention+moe,attention+mlp optimizer.muon_steps=2"}));

// Groups change only what they name, wherever it lies.
TEST(GroupsGrid, EqualOneRank) {
  EXPECT_LT(weight_difference({kLlamaModel,
                               "ranks=4 tensor=2 shard=optimizer optimizer.name=sgd "
                               "optimizer.learning_rate=0.1 optimizer.no_decay=[\"*.qkv.*\"] "
                               "optimizer.rates=[\"*.fc1.*=0.5\",\"embedding.*=2\"]"}),
            1e-5);
}

}  // namespace
}  // namespace braid
