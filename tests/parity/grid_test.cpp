#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parity/layout_config.h"
#include "plan/run_spec.h"
#include "support/thinned.h"
#include "verify/verify_layout.h"

namespace braid {
namespace {

class ParityGrid : public testing::TestWithParam<Layout> {};

// f64 gradients: sums over ranks are in another order than on one rank, and nothing else differs;
// 1e-11 is some ten thousand roundings. f32 training: three steps of AdamW, whose first updates
// divide gradients by their own size, so that the rounding of a small gradient (1e-7 relative to
// the largest) shows in full in weights that move by the learning rate of 3e-4.
TEST_P(ParityGrid, EqualsOneRank) {
  const LayoutComparison comparison =
      compare_with_one_rank(resolve_run(config_of(GetParam()), 0), {});
  EXPECT_LT(comparison.loss_f64, 1e-13);
  for (const TensorDifference& gradient : comparison.gradients) {
    EXPECT_LT(gradient.difference, 1e-11) << "gradient of " << gradient.name;
  }
  EXPECT_LT(comparison.worst_loss(), 2e-6);
  EXPECT_LT(comparison.grad_norm, 1e-5);
  for (const TensorDifference& weight : comparison.weights) {
    EXPECT_LT(weight.difference, 2e-3) << "weight " << weight.name;
  }
}

/// Documents that share sequences, over tensor, pipeline and context ranks: both methods of
/// exchange, learned positions, latents, multi-token prediction, halves of microbatches.
const std::vector<Layout> kDocumentLayouts = {
    {kLlamaModel, "ranks=8 tensor=2 sequence_parallel=true pipeline=2"},
    {kLlamaModel, "ranks=2 tensor=2 overlap.mode=manual overlap.pair_forward_backward=halves"},
    {kLlamaModel, "ranks=3 context=3"},
    {kLlamaModel, "ranks=4 context=2 tensor=2 context_method=all_gather sequence_parallel=true"},
    {kGpt2Model, "ranks=4 context=2 tensor=2 memory.recompute=full"},
    {kGpt2Model, "ranks=4 context=4 context_method=a2a train.sequence=16 train.microbatch=1"},
    {kLlamaModel, "ranks=4 context=4 context_method=a2a+ring train.sequence=16"},
    {kLatentsModel, "ranks=4 context=2 pipeline=2"},
    {kMtpModel, "ranks=2 context=2 train.global_batch=4"},
    {kWindowsModel, "ranks=4 context=4 train.sequence=16"},
    {kWindowsModel, "ranks=4 context=2 tensor=2 context_method=all_gather sequence_parallel=true"},
};

/// Windows over tensor, pipeline and context ranks: rings that pass over ranks whose keys nobody
/// sees, both chunks of a rank in a window, and one token alone.
const std::vector<Layout> kWindowLayouts = {
    {kWindowsModel, "ranks=4 shard=parameters"},
    {kWindowsModel, "ranks=8 tensor=2 sequence_parallel=true pipeline=2"},
    {kWindowsModel, "ranks=4 pipeline=4 schedule=1f1b memory.recompute=full"},
    {kWindowsModel, "ranks=2 pipeline=2 virtual_stages=2 schedule=zb-v"},
    {kWindowsModel, "ranks=2 context=2 memory.recompute=attention"},
    {kWindowsModel, "ranks=4 context=4 train.sequence=16 model.sliding_window=3"},
    {kWindowsModel, "ranks=6 context=6 train.global_batch=4 model.sliding_window=2"},
    {kWindowsModel, "ranks=4 context=4 train.sequence=16 model.sliding_window=1"},
    {kWindowsModel, "ranks=3 context=3 context_method=all_gather shard=optimizer"},
    {kWindowsModel, "ranks=4 context=2 tensor=2 sequence_parallel=true model.sliding_window=7"},
    {kWindowsModel, "ranks=2 context=2 context_method=a2a"},
    {kWindowsModel, "ranks=4 context=4 context_method=a2a+ring train.sequence=16"},
    {kWindowsModel, "ranks=2 tensor=2 overlap.mode=manual overlap.pair_forward_backward=halves"},
};

INSTANTIATE_TEST_SUITE_P(Windows, ParityGrid, testing::ValuesIn(kWindowLayouts));

const std::vector<Layout> kGemmaLayouts = {
    {kGemmaModel, "ranks=4 shard=parameters"},
    {kGemmaModel, "ranks=2 shard=gradients memory.recompute=norms"},
    {kGemmaModel, "ranks=2 tensor=2 memory.recompute=full"},
    {kGemmaModel, "ranks=4 tensor=4 sequence_parallel=true"},
    {kGemmaModel, "ranks=8 tensor=2 sequence_parallel=true pipeline=2"},
    {kGemmaModel, "ranks=4 pipeline=4 schedule=1f1b memory.recompute=attention"},
    {kGemmaModel, "ranks=2 pipeline=2 virtual_stages=2 schedule=zb-v"},
    {kGemmaModel, "ranks=4 context=2 tensor=2 sequence_parallel=true shard=optimizer"},
    {kGemmaModel, "ranks=3 context=3 context_method=all_gather"},
    {kGemmaModel, "ranks=4 context=4 context_method=a2a+ring train.sequence=16"},
    {kGemmaModel, "ranks=2 context=2 data.document_mask=true"},
    {kGemmaModel, "ranks=2 tensor=2 overlap.mode=manual overlap.pair_forward_backward=halves"},
    {kGemmaModel, "ranks=2 tensor=2 sequence_parallel=true model.mtp_depth=1"},
};

INSTANTIATE_TEST_SUITE_P(Gemma, ParityGrid, testing::ValuesIn(kGemmaLayouts));

/// Positions of parts of heads over tensor, pipeline and context ranks.
const std::vector<Layout> kLongropeLayouts = {
    {kLongropeModel, "ranks=4 tensor=4 sequence_parallel=true memory.recompute=full"},
    {kLongropeModel, "ranks=4 context=2 pipeline=2"},
    {kLongropeModel, "ranks=4 context=4 context_method=a2a+ring train.sequence=16"},
    {kLongropeModel, "ranks=2 context=2 data.document_mask=true shard=parameters"},
    {kLongropeModel, "ranks=2 tensor=2 overlap.mode=manual overlap.pair_forward_backward=halves"},
};

INSTANTIATE_TEST_SUITE_P(Longrope, ParityGrid, testing::ValuesIn(kLongropeLayouts));

INSTANTIATE_TEST_SUITE_P(Documents, ParityGrid, testing::ValuesIn([] {
                           std::vector<Layout> list = kDocumentLayouts;
                           for (Layout& layout : list) {
                             layout.overrides += " data.document_mask=true";
                           }
                           return list;
                         }()));

class Bfloat16Grid : public testing::TestWithParam<Layout> {};

// A rounding to bf16 is 2^-9 at most. Each logit is behind some forty of them, which layouts place
// differently where they split a sum (addends of tensor ranks are rounded before they are added);
// their errors are as often up as down, and a loss is the mean over 165 tokens. The norm of the
// gradient comes out of twice as many roundings. What is computed differently shows in f64, of the
// same layout, where rounding does not hide it. Weights after three updates of AdamW differ by up
// to twice the sum of the learning rates where the sign of a tiny gradient is another one: 2e-3,
// and the largest element of a tensor may be as small as 0.1.
TEST_P(Bfloat16Grid, EqualsOneRankUpToRounding) {
  Layout layout = GetParam();
  layout.overrides += " train.dtype=bfloat16";
  const LayoutComparison comparison = compare_with_one_rank(resolve_run(config_of(layout), 0), {});
  EXPECT_LT(comparison.worst_gradient(), 1e-11);
  EXPECT_LT(comparison.worst_loss(), 2e-3);
  EXPECT_LT(comparison.grad_norm, 1e-2);
  EXPECT_LT(comparison.worst_weight(), 2e-2);
}

/// Ranks that hold different experts: all data ranks, some of them, with tensor, context and
/// pipeline ranks, with experts that are split, and state in shards.
const std::vector<Layout> kExpertLayouts = {
    {kExpertsModel, "ranks=2 expert=2"},
    {kExpertsModel, "ranks=3 expert=3 train.global_batch=12"},
    {kExpertsModel, "ranks=6 expert=6 train.global_batch=12"},
    {kSharedExpertModel, "ranks=8 expert=8"},
    {kSharedExpertModel, "ranks=8 expert=4"},
    {kGatedExpertModel, "ranks=5 expert=5 train.global_batch=10"},
    {kExpertsModel, "ranks=4 expert=2"},
    {kExpertsModel, "ranks=4 expert=2 shard=optimizer"},
    {kExpertsModel, "ranks=4 expert=2 shard=gradients"},
    {kExpertsModel, "ranks=4 expert=2 shard=parameters"},
    {kSharedExpertModel, "ranks=8 expert=2 shard=parameters shard_replicas=2"},
    {kSharedExpertModel, "ranks=8 expert=2 shard=gradients shard_replicas=4"},
    {kExpertsModel, "ranks=2 expert_tensor=2"},
    {kExpertsModel, "ranks=4 expert=2 expert_tensor=2"},
    {kSharedExpertModel, "ranks=6 expert=2 expert_tensor=3 train.global_batch=12"},
    {kGatedExpertModel, "ranks=4 expert_tensor=2 shard=optimizer"},
    {kSharedExpertModel, "ranks=8 expert=4 expert_tensor=2"},
    {kExpertsModel, "ranks=2 tensor=2 sequence_parallel=true expert=2"},
    {kSharedExpertModel, "ranks=4 tensor=4 sequence_parallel=true expert=4"},
    {kSharedExpertModel, "ranks=4 tensor=2 sequence_parallel=true expert=4"},
    {kExpertsModel, "ranks=4 tensor=2 sequence_parallel=true expert=2 shard=parameters"},
    {kExpertsModel, "ranks=4 tensor=2 sequence_parallel=true expert=1 expert_tensor=2"},
    {kSharedExpertModel, "ranks=8 tensor=2 sequence_parallel=true expert=4 shard=gradients"},
    {kExpertsModel, "ranks=2 context=2 expert=2"},
    {kSharedExpertModel, "ranks=4 context=2 expert=4"},
    {kExpertsModel, "ranks=3 context=3 expert=3 context_method=all_gather"},
    {kSharedExpertModel, "ranks=8 context=2 tensor=2 sequence_parallel=true expert=8"},
    {kSharedExpertModel, "ranks=8 context=2 tensor=2 sequence_parallel=true expert=4"},
    {kExpertsModel, "ranks=4 pipeline=2 expert=2"},
    {kSharedExpertModel, "ranks=4 pipeline=2 expert=2 schedule=gpipe"},
    {kSharedExpertModel, "ranks=4 pipeline=2 expert=2 schedule=zb-h1"},
    {kExpertsModel, "ranks=4 pipeline=2 expert=2 virtual_stages=2 schedule=interleaved"},
    {kSharedExpertModel, "ranks=4 pipeline=2 expert=2 virtual_stages=2 schedule=zb-v"},
    {kSharedExpertModel, "ranks=4 pipeline=2 expert=2 virtual_stages=2 schedule=dualpipe-v"},
    {kExpertsModel, "ranks=8 pipeline=2 expert=2 shard=parameters"},
    {kExpertsModel, "ranks=8 pipeline=2 tensor=2 sequence_parallel=true expert=2 shard=optimizer"},
    {kSharedExpertModel, "ranks=8 pipeline=2 context=2 expert=4 shard=gradients"},
    {kSharedExpertModel, "ranks=8 pipeline=4 expert=2 train.global_batch=16"},
    {kExpertsModel, "ranks=4 expert=2 memory.recompute=norms"},
    {kExpertsModel, "ranks=4 expert=2 memory.recompute=full"},
    {kSharedExpertModel,
     "ranks=8 pipeline=2 expert=4 memory.recompute=full memory.offload_layers=2 "
     "memory.offload_min_bytes=1"},
    {kExpertsModel, "ranks=2 expert=2 moe.capacity=2"},
    {kSharedExpertModel, "ranks=4 expert=2 expert_tensor=2 moe.capacity=2.5"},
    {kExpertsModel, "ranks=2 moe.expert_capacity=0.8"},
    {kExpertsModel, "ranks=2 expert=2 moe.expert_capacity=0.8"},
    {kSharedExpertModel, "ranks=8 expert=4 expert_tensor=2 moe.expert_capacity=1"},
    {kSharedExpertModel, "ranks=8 pipeline=2 expert=2 shard=parameters moe.expert_capacity=0.5"},
    {kExpertsModel,
     "ranks=4 pipeline=2 expert=2 schedule=zb-h1 moe.expert_capacity=1.1 moe.drop=position"},
    {kExpertsModel, "ranks=4 expert=2 moe.expert_capacity=0.6 memory.recompute=full"},
    {kExpertsModel, "ranks=2 expert=2 moe.exchange=blocks"},
    {kSharedExpertModel, "ranks=8 expert=4 expert_tensor=2 moe.exchange=blocks"},
    {kSharedExpertModel, "ranks=4 tensor=2 sequence_parallel=true expert=4 moe.exchange=blocks"},
    {kExpertsModel, "ranks=4 pipeline=2 expert=2 schedule=zb-h1 moe.exchange=blocks"},
    {kExpertsModel, "ranks=4 expert=2 memory.recompute=full moe.exchange=blocks"},
    {kExpertsModel, "ranks=2 expert=2 moe.expert_capacity=0.8 moe.exchange=blocks"},
    {kExpertsModel, "ranks=2 expert=2 moe.exchange=hosts moe.exchange_hosts=2"},
    {kExpertsModel,
     "ranks=3 context=3 expert=3 context_method=all_gather moe.exchange=hosts "
     "moe.exchange_hosts=3"},
    {kSharedExpertModel, "ranks=4 expert=4 moe.exchange=hosts moe.exchange_hosts=2"},
    {kSharedExpertModel, "ranks=4 expert=4 moe.exchange=hosts moe.exchange_hosts=4"},
    {kSharedExpertModel,
     "ranks=8 expert=4 expert_tensor=2 moe.exchange=hosts moe.exchange_hosts=2"},
    {kSharedExpertModel,
     "ranks=4 tensor=2 sequence_parallel=true expert=4 moe.exchange=hosts moe.exchange_hosts=2"},
    {kSharedExpertModel, "ranks=4 context=2 expert=4 moe.exchange=hosts moe.exchange_hosts=2"},
    {kSharedExpertModel,
     "ranks=8 pipeline=2 expert=4 schedule=zb-h1 moe.exchange=hosts moe.exchange_hosts=2"},
    {kSharedExpertModel,
     "ranks=4 expert=4 memory.recompute=full moe.exchange=hosts moe.exchange_hosts=2"},
    {kSharedExpertModel,
     "ranks=8 expert=4 shard=parameters memory.recompute=norms moe.exchange=hosts "
     "moe.exchange_hosts=2"},
    {kSharedExpertModel,
     "ranks=4 expert=4 moe.exchange=hosts moe.exchange_hosts=2 moe.capacity=2.5"},
};

/// Trained biases of routers, whose gradients are those of each rank's own tokens: all kinds of
/// ranks that share tokens, state in shards, and recomputation. Sigmoids, with biases that balance
/// beside those of the logits.
const std::vector<Layout> kLogitBiasLayouts = {
    {kLogitBiasModel, "ranks=4 shard=optimizer"},
    {kLogitBiasModel, "ranks=4 expert=2 shard=gradients"},
    {kLogitBiasModel, "ranks=4 expert=2 shard=parameters memory.recompute=full"},
    {kLogitBiasModel, "ranks=8 shard=parameters shard_replicas=4 bucket=virtual_stage"},
    {kLogitBiasModel, "ranks=4 expert=2 expert_tensor=2"},
    {kLogitBiasModel, "ranks=2 tensor=2 sequence_parallel=true expert=2"},
    {kLogitBiasModel,
     "ranks=8 pipeline=2 tensor=2 sequence_parallel=true expert=2 shard=optimizer"},
    {kLogitBiasModel, "ranks=3 context=3 expert=3 context_method=all_gather"},
    {kLogitBiasModel, "ranks=8 context=2 tensor=2 sequence_parallel=true expert=2 shard=gradients"},
    {kLogitBiasModel, "ranks=4 pipeline=2 expert=2 schedule=zb-h1"},
    {kLogitBiasModel, "ranks=4 expert=2 memory.recompute=norms moe.expert_capacity=0.8"},
    {kLogitBiasModel, "ranks=2 expert=2 moe.exchange=hosts moe.exchange_hosts=2"},
    {kDeepseekModel,
     "ranks=4 tensor=2 sequence_parallel=true expert=4 shard=optimizer "
     "model.router_logit_bias=true"},
    {kHybridExpertsModel,
     "ranks=4 pipeline=2 expert=2 train.global_batch=8 model.router_logit_bias=true"},
};

INSTANTIATE_TEST_SUITE_P(LogitBiases, ParityGrid, testing::ValuesIn(thinned(kLogitBiasLayouts, 2)));

std::vector<Layout> layouts() {
  const std::vector<std::string> all = {
      "ranks=4",
      "ranks=4 shard=optimizer",
      "ranks=4 shard=gradients",
      "ranks=4 shard=parameters",
      "ranks=8 shard=gradients shard_replicas=2",
      "ranks=8 shard=parameters shard_replicas=4 bucket=virtual_stage",
      "ranks=2 tensor=2",
      "ranks=2 tensor=2 sequence_parallel=true",
      "ranks=4 tensor=4 sequence_parallel=true",
      "ranks=4 tensor=2 sequence_parallel=true shard=optimizer",
      "ranks=8 tensor=4 sequence_parallel=true shard=parameters",
      "ranks=2 pipeline=2",
      "ranks=2 pipeline=2 schedule=gpipe",
      "ranks=4 pipeline=4",
      "ranks=2 pipeline=2 virtual_stages=2 schedule=interleaved",
      "ranks=2 pipeline=2 schedule=zb-h1",
      "ranks=2 pipeline=2 virtual_stages=2 schedule=zb-v",
      "ranks=2 pipeline=2 virtual_stages=2 schedule=dualpipe-v",
      // Odd numbers of ranks, stages and microbatches.
      "ranks=3 pipeline=3 train.global_batch=14",
      "ranks=3 pipeline=3 schedule=zb-h1 pipeline_layout=Et|tt|tL train.global_batch=14",
      ("ranks=3 pipeline=3 virtual_stages=3 schedule=interleaved "
       "pipeline_layout=Et|||t||t|||tL train.global_batch=18"),
      ("ranks=3 pipeline=3 virtual_stages=3 schedule=interleaved microbatch_group_size=5 "
       "pipeline_layout=Et|t||||t|||tL train.global_batch=10"),
      ("ranks=3 pipeline=3 virtual_stages=2 schedule=zb-v pipeline_layout=Et|t||t||tL "
       "train.global_batch=14"),
      ("ranks=3 pipeline=3 virtual_stages=2 schedule=dualpipe-v pipeline_layout=Et|t||t||tL "
       "train.global_batch=14"),
      "ranks=4 pipeline=2 shard=gradients",
      "ranks=4 pipeline=2 tensor=2 sequence_parallel=true",
      "ranks=8 pipeline=2 tensor=2 sequence_parallel=true shard=optimizer",
      "ranks=8 pipeline=2 tensor=2 virtual_stages=2 schedule=interleaved shard=parameters",
      "ranks=16 pipeline=4 tensor=2 sequence_parallel=true shard=gradients",
      "ranks=2 context=2",
      "ranks=3 context=3",
      "ranks=6 context=6 shard=parameters",
      "ranks=2 context=2 context_method=all_gather",
      "ranks=6 context=6 context_method=all_gather",
      "ranks=8 context=2 tensor=2 sequence_parallel=true shard=gradients",
      "ranks=8 context=2 pipeline=2 virtual_stages=2 schedule=zb-v shard=optimizer",
      "ranks=8 context=2 tensor=2 pipeline=2 context_method=all_gather sequence_parallel=true",
  };
  std::vector<Layout> list;
  for (const char* const model : {kLlamaModel, kGpt2Model, kQwenModel}) {
    for (const std::string& layout : all) {
      list.push_back({model, layout});
    }
  }
  // Tensor ranks with experts split the rows.
  size_t number = 0;
  for (const std::string& layout : all) {
    if (layout.find("tensor=") == std::string::npos ||
        layout.find("sequence_parallel") != std::string::npos) {
      const char* const models[] = {kExpertsModel, kGatedExpertModel, kSharedExpertModel};
      list.push_back({models[number++ % 3], layout});
    }
  }
  list.insert(list.end(), kExpertLayouts.begin(), kExpertLayouts.end());
  // Exchanges of heads need as many key/value heads.
  for (const char* const model : {kLlamaModel, kGpt2Model}) {
    for (const char* const layout :
         {"ranks=2 context=2 context_method=a2a",
          "ranks=4 context=2 tensor=2 context_method=all_gather sequence_parallel=true",
          "ranks=6 context=6 context_method=a2a+ring",
          "ranks=4 context=4 context_method=a2a+ring train.sequence=16",
          ("ranks=8 context=4 context_method=a2a+ring context_inner=2 pipeline=2 shard=gradients "
           "train.sequence=16")}) {
      list.push_back({model, layout});
    }
  }
  list.push_back({kGpt2Model, "ranks=4 context=4 context_method=a2a train.sequence=16"});
  list.push_back(
      {kGpt2Model, "ranks=8 context=4 tensor=2 context_method=a2a+ring train.sequence=24"});
  list.push_back({kGpt2Model, "ranks=8 context=8 context_method=ring train.sequence=16"});
  // Three ranks cut the run between two chunks in the middle.
  list.push_back({kThreeKvHeads, "ranks=3 context=3 context_method=a2a"});
  list.push_back({kThreeKvHeads, "ranks=6 context=6 context_method=a2a+ring context_inner=3"});
  // No second chunk per rank where all of them exchange heads.
  list.push_back({kThreeKvHeads, "ranks=3 context=3 context_method=a2a train.sequence=9"});
  list.push_back(
      {kGpt2Model, "ranks=4 context=4 context_method=a2a+ring context_inner=2 train.sequence=20"});
  // Stages that pass on what they get: alone on their rank, beside another one, or two in a row.
  for (const char* const layout :
       {"ranks=8 pipeline=4 pipeline_layout=Ett||t|tL shard=gradients",
        "ranks=2 pipeline=2 virtual_stages=2 schedule=interleaved pipeline_layout=Ett|||ttL",
        "ranks=2 pipeline=2 virtual_stages=2 schedule=zb-v pipeline_layout=Et||tt|tL",
        "ranks=4 pipeline=2 tensor=2 virtual_stages=2 schedule=dualpipe-v "
        "pipeline_layout=E|tt||ttL sequence_parallel=true shard=none"}) {
    list.push_back({kLlamaModel, layout});
    list.push_back({kGpt2Model, layout});
  }
  // What is not kept from the forward is made again as it was, or comes back from the host.
  for (const char* const layout :
       {"ranks=4 context=2 tensor=2 sequence_parallel=true memory.recompute=full",
        "ranks=4 context=2 context_method=all_gather shard=parameters memory.recompute=attention",
        "ranks=4 tensor=2 shard=parameters memory.recompute=full",
        "ranks=8 tensor=2 pipeline=2 virtual_stages=2 schedule=interleaved sequence_parallel=true "
        "shard=parameters memory.recompute=full memory.offload_layers=3 "
        "memory.offload_min_bytes=1",
        "ranks=4 pipeline=2 schedule=zb-h1 shard=gradients memory.recompute=norms "
        "memory.offload_layers=2 memory.offload_min_bytes=1"}) {
    list.push_back({kLlamaModel, layout});
    list.push_back({kGpt2Model, layout});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Layouts, ParityGrid, testing::ValuesIn(thinned(layouts(), 32)));

// Models of layers that differ, on stages that are balanced by what each of them takes.
INSTANTIATE_TEST_SUITE_P(
    Patterns, ParityGrid,
    testing::ValuesIn(thinned<Layout>(
        {Layout{kPatternModel, "ranks=2 shard=parameters"},
         Layout{kPatternModel, "ranks=4 tensor=4 sequence_parallel=true memory.recompute=full"},
         Layout{kPatternModel, "ranks=4 context=2 tensor=2 context_method=a2a+ring"},
         Layout{kPatternModel, "ranks=3 pipeline=3 schedule=1f1b memory.recompute=norms"},
         Layout{kPatternModel,
                "ranks=8 pipeline=2 tensor=2 virtual_stages=2 schedule=interleaved "
                "shard=gradients memory.offload_layers=3"},
         Layout{kPatternModel,
                "ranks=2 pipeline=2 virtual_stages=2 schedule=zb-v "
                "memory.recompute=attention memory.recompute_layers=3"},
         Layout{"model.family=gpt2 model.pattern=mlp*3 model.width=24 model.heads=4 model.ffn=24 "
                "model.vocabulary=101",
                "ranks=6 pipeline=3 tensor=2"}},
        3)));

// A tensor rank has five runs of rows of the first matrix, and stages have layers of unequal cost.
INSTANTIATE_TEST_SUITE_P(
    Hybrids, ParityGrid,
    testing::ValuesIn(thinned<Layout>(
        {Layout{kHybridModel, "ranks=2 tensor=2"},
         Layout{kHybridModel, "ranks=4 tensor=2 sequence_parallel=true shard=optimizer"},
         Layout{kHybridModel, "ranks=4 shard=gradients memory.recompute=attention"},
         Layout{kHybridModel, "ranks=4 shard=parameters"},
         Layout{kHybridModel, "ranks=3 pipeline=3 schedule=zb-h1 memory.recompute=norms"},
         Layout{kHybridModel,
                "ranks=8 pipeline=2 tensor=2 virtual_stages=2 schedule=interleaved "
                "sequence_parallel=true shard=parameters memory.recompute=full"},
         Layout{kHybridModel,
                "ranks=4 shard=parameters shard_replicas=2 bucket=virtual_stage "
                "train.global_batch=8"},
         Layout{kHybridModel, "ranks=2 pipeline=2 pipeline_layout=Ett|ttttL train.global_batch=4"},
         Layout{kHybridModel,
                "ranks=2 pipeline=2 virtual_stages=2 schedule=zb-v train.global_batch=8"},
         Layout{kHybridModel,
                "ranks=2 pipeline=2 virtual_stages=2 schedule=dualpipe-v "
                "pipeline_layout=Et|ttt|t|tL train.global_batch=8"}},
        10)));

// Ranks with the same shard update parts of it: with each kind of shards, tensor, context and
// pipeline ranks, experts with fewer copies, hybrids, and as many copies as ranks.
INSTANTIATE_TEST_SUITE_P(
    ShardOverReplicas, ParityGrid, testing::ValuesIn([] {
      std::vector<Layout> list = {
          {kLlamaModel, "ranks=4 shard=optimizer train.global_batch=8"},
          {kGpt2Model, "ranks=8 pipeline=2 shard=gradients train.global_batch=8"},
          {kQwenModel,
           "ranks=8 tensor=2 sequence_parallel=true shard=parameters bucket=virtual_stage"},
          {kLlamaModel, "ranks=2 context=2 shard=parameters memory.recompute=full"},
          {kSharedExpertModel, "ranks=8 expert=2 shard=parameters"},
          {kExpertsModel, "ranks=4 expert=2 shard=gradients train.global_batch=8"},
          {kHybridModel,
           "ranks=8 pipeline=2 shard=parameters schedule=zb-h1 pipeline_layout=Ett|ttttL"},
          {kHybridExpertsMtpModel, "ranks=4 expert=2 shard=optimizer train.global_batch=8"},
      };
      for (Layout& layout : list) {
        layout.overrides += " shard_replicas=2 shard_over_replicas=true";
      }
      return thinned(list, 4);
    }()));

// Context ranks exchange heads around the states: tokens of rings are in zig-zag order, those of
// exchanges in one or two runs.
INSTANTIATE_TEST_SUITE_P(
    HybridContext, ParityGrid,
    testing::ValuesIn(thinned<Layout>(
        {Layout{kHybridModel, "ranks=2 context=2 train.global_batch=4"},
         Layout{kHybridModel,
                "ranks=4 context=2 context_method=a2a shard=parameters train.global_batch=4"},
         Layout{kHybridModel,
                "ranks=2 context=2 context_method=a2a train.sequence=6 train.global_batch=4"},
         Layout{kHybridModel,
                "ranks=4 context=2 context_method=all_gather shard=gradients "
                "memory.recompute=attention train.global_batch=4"},
         Layout{kHybridModel,
                "ranks=4 context=4 model.mamba_n_groups=4 train.sequence=16 "
                "memory.recompute=full train.microbatch=1 train.global_batch=2"},
         Layout{kHybridExpertsModel,
                "ranks=8 context=2 tensor=2 pipeline=2 sequence_parallel=true expert=2 "
                "schedule=zb-h1 model.mamba_n_groups=4 train.global_batch=4"},
         Layout{kHybridExpertsMtpModel,
                "ranks=4 context=2 expert=4 shard=parameters train.global_batch=4"}},
        4)));

// Context ranks pass states: three and four of them, which do not divide the two groups, with two
// sections of a sequence on each, or one, and chunks that end with a section or do not.
INSTANTIATE_TEST_SUITE_P(
    HybridStates, ParityGrid,
    testing::ValuesIn(thinned<Layout>(
        {Layout{kHybridModel, "ranks=2 context=2 mamba_context=states train.global_batch=4"},
         Layout{kHybridModel,
                "ranks=3 context=3 mamba_context=states train.sequence=24 shard=parameters "
                "train.global_batch=2"},
         Layout{kHybridModel,
                "ranks=4 context=4 mamba_context=states context_method=all_gather "
                "train.sequence=32 shard=optimizer memory.recompute=full train.microbatch=1 "
                "train.global_batch=2"},
         Layout{kHybridModel,
                "ranks=4 context=2 mamba_context=states context_method=a2a shard=gradients "
                "memory.recompute=attention train.global_batch=4"},
         Layout{kHybridModel,
                "ranks=2 context=2 mamba_context=states context_method=a2a train.sequence=6 "
                "train.global_batch=4"},
         Layout{kHybridModel,
                "ranks=4 context=4 mamba_context=states context_method=a2a+ring context_inner=2 "
                "train.sequence=16 memory.recompute=norms train.microbatch=2 train.global_batch=4"},
         Layout{kHybridExpertsModel,
                "ranks=8 context=2 tensor=2 pipeline=2 mamba_context=states "
                "sequence_parallel=true expert=2 schedule=zb-h1 train.global_batch=4"},
         Layout{kHybridExpertsMtpModel,
                "ranks=4 context=2 mamba_context=states expert=4 shard=parameters "
                "train.global_batch=4"}},
        4)));

// Experts without gates, on data, tensor and pipeline ranks; an expert layer alone predicts a
// second token.
INSTANTIATE_TEST_SUITE_P(
    HybridExperts, ParityGrid,
    testing::ValuesIn(thinned<Layout>(
        {Layout{kHybridExpertsModel, "ranks=4 expert=2 shard=parameters train.global_batch=8"},
         Layout{kHybridExpertsModel,
                "ranks=2 expert_tensor=2 memory.recompute=norms train.global_batch=4"},
         Layout{kHybridExpertsModel,
                "ranks=4 tensor=2 sequence_parallel=true expert=4 shard=optimizer "
                "train.global_batch=4"},
         Layout{kHybridExpertsModel,
                "ranks=4 pipeline=2 expert=2 virtual_stages=2 schedule=interleaved "
                "train.global_batch=8"},
         Layout{kHybridExpertsMtpModel,
                "ranks=4 pipeline=2 expert=2 pipeline_layout=Ettttt|tL train.global_batch=8"}},
        5)));

// Matrices that make latents are whole on tensor ranks, and so is the rotated part of keys.
INSTANTIATE_TEST_SUITE_P(
    Latents, ParityGrid,
    testing::ValuesIn(thinned<Layout>(
        {Layout{kDeepseekModel, "ranks=4 tensor=2 sequence_parallel=true shard=optimizer"},
         Layout{kDeepseekModel, "ranks=4 shard=parameters"},
         Layout{kDeepseekModel,
                "ranks=4 context=2 tensor=2 context_method=a2a sequence_parallel=true"},
         Layout{kDeepseekModel, "ranks=2 context=2 memory.recompute=full"},
         Layout{kDeepseekModel,
                "ranks=8 pipeline=2 tensor=2 virtual_stages=2 schedule=interleaved "
                "sequence_parallel=true shard=gradients memory.recompute=norms"},
         Layout{kLatentsModel, "ranks=4 tensor=4"},
         Layout{kLatentsModel, "ranks=2 tensor=2 sequence_parallel=true memory.recompute=norms"},
         Layout{kLatentsModel, "ranks=4 context=2 tensor=2 context_method=all_gather"},
         Layout{kLatentsModel, "ranks=6 context=6 context_method=a2a+ring shard=parameters"}},
        9)));

// Latents beside expert ranks, which are data, tensor or context ranks; one layout has tensor ranks
// that end inside a sequence.
INSTANTIATE_TEST_SUITE_P(
    LatentsAndExperts, ParityGrid,
    testing::ValuesIn(thinned<Layout>(
        {Layout{kDeepseekModel, "ranks=4 expert=4"},
         Layout{kDeepseekModel, "ranks=4 tensor=2 sequence_parallel=true expert=4"},
         Layout{kDeepseekModel,
                "ranks=4 tensor=4 sequence_parallel=true expert=2 expert_tensor=2 "
                "train.microbatch=3 train.global_batch=15"},
         Layout{kDeepseekModel,
                "ranks=8 context=2 tensor=2 sequence_parallel=true expert=4 shard=gradients"},
         Layout{kDeepseekModel, "ranks=4 context=2 expert=2 context_method=a2a"},
         Layout{kDeepseekModel,
                "ranks=8 pipeline=2 tensor=2 sequence_parallel=true expert=2 shard=optimizer "
                "memory.recompute=full"}},
        6)));

// The embedding is read once more on the last stage, a second time in the step where its weights
// are gathered; stages with as many layers as without multi-token prediction take longer.
INSTANTIATE_TEST_SUITE_P(
    Mtp, ParityGrid,
    testing::ValuesIn(thinned<Layout>(
        {Layout{kMtpModel, "ranks=3 pipeline=3 pipeline_layout=Et|ttt|L train.global_batch=8"},
         Layout{kMtpModel,
                "ranks=4 tensor=2 sequence_parallel=true shard=optimizer train.global_batch=8"},
         Layout{kMtpModel, "ranks=4 shard=parameters memory.recompute=full train.global_batch=8"},
         Layout{kMtpModel,
                "ranks=8 pipeline=2 tensor=2 virtual_stages=2 schedule=interleaved "
                "sequence_parallel=true shard=parameters train.global_batch=8"},
         Layout{kMtpModel,
                "ranks=4 pipeline=2 virtual_stages=2 schedule=dualpipe-v shard=gradients"},
         Layout{kMtpModel, "ranks=4 context=2 tensor=2 train.global_batch=6"},
         Layout{kTiedMtpModel,
                "ranks=4 pipeline=2 schedule=zb-h1 shard=gradients train.global_batch=8"},
         Layout{kTiedMtpModel,
                "ranks=4 pipeline=2 tensor=2 memory.recompute=norms train.global_batch=8"},
         Layout{kHybridMtpModel, "ranks=4 shard=parameters train.global_batch=8"},
         Layout{kHybridMtpModel,
                "ranks=8 pipeline=2 tensor=2 sequence_parallel=true shard=optimizer "
                "pipeline_layout=Ettttt|tL memory.recompute=full train.global_batch=8"},
         Layout{kExpertsMtpModel, "ranks=4 pipeline=2 expert=2 train.global_batch=8"},
         Layout{kExpertsMtpModel,
                "ranks=4 tensor=2 sequence_parallel=true expert=2 shard=parameters "
                "train.global_batch=8"}},
        12)));

// The loss of the log-sum-exp, of whole logits and of their columns on tensor ranks, of tokens on
// context ranks, and of each head of multi-token prediction. compare_with_one_rank adds it to the
// loss.
INSTANTIATE_TEST_SUITE_P(
    ZLoss, ParityGrid, testing::ValuesIn([] {
      std::vector<Layout> list = {
          {kLlamaModel, "ranks=4 shard=parameters"},
          {kLlamaModel, "ranks=4 tensor=4"},
          {kGpt2Model, "ranks=8 tensor=2 pipeline=2 sequence_parallel=true shard=optimizer"},
          {kLlamaModel, "ranks=4 context=2 tensor=2 sequence_parallel=true"},
          {kTiedMtpModel, "ranks=4 pipeline=2 tensor=2 memory.recompute=norms"},
          {kExpertsModel, "ranks=4 pipeline=2 expert=2"}};
      for (Layout& layout : list) {
        layout.overrides += " train.z_loss=0.01";
      }
      return list;
    }()));

std::vector<Layout> bfloat16_layouts() {
  return {
      {kLlamaModel, "ranks=4 shard=optimizer"},
      {kLlamaModel, "ranks=4 shard=parameters grad_reduce_dtype=bfloat16"},
      {kLlamaModel, "ranks=4 tensor=4 sequence_parallel=true"},
      {kLlamaModel, "ranks=8 tensor=2 pipeline=2 shard=gradients memory.recompute=full"},
      {kLlamaModel, "ranks=4 context=2 tensor=2 sequence_parallel=true"},
      {kLlamaModel, "ranks=8 context=2 pipeline=2 virtual_stages=2 schedule=zb-v shard=optimizer"},
      {kGpt2Model, "ranks=2 tensor=2"},
      {kGpt2Model, "ranks=6 context=6 context_method=all_gather"},
      {kGpt2Model, "ranks=4 context=4 context_method=a2a train.sequence=16"},
      {kGpt2Model, "ranks=4 pipeline=4 schedule=zb-h1"},
      {kQwenModel,
       "ranks=8 pipeline=2 tensor=2 virtual_stages=2 schedule=interleaved "
       "sequence_parallel=true shard=parameters"}};
}

INSTANTIATE_TEST_SUITE_P(Layouts, Bfloat16Grid, testing::ValuesIn(thinned(bfloat16_layouts(), 5)));

}  // namespace
}  // namespace braid
