#include "plan/overlap_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "passes/gradients/delay_last_wgrad.h"
#include "passes/pipeline.h"
#include "passes/pipeline/defer_head_wgrad.h"
#include "passes/pipeline/delay_wgrad.h"
#include "passes/pipeline/fill_cooldown.h"
#include "passes/pipeline/p2p_streams.h"
#include "passes/streams/comm_engine.h"
#include "passes/tensor/bulk_overlap.h"
#include "passes/tensor/ring_exchange.h"
#include "passes/tensor/split_ops.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(OverlapSetup, AutoTakesTheDefaultsOfThePasses) {
  const OverlapSetup setup = overlap_setup({});
  EXPECT_THAT(setup.disabled_passes, IsEmpty());
  EXPECT_TRUE(setup.options.get<P2pStreamsOptions>().enabled);
  EXPECT_TRUE(setup.options.get<P2pStreamsOptions>().warmup_flush);
  EXPECT_TRUE(setup.options.get<P2pStreamsOptions>().backward_on_comm_stream);
  EXPECT_EQ(setup.options.get<DelayWgradOptions>().num_layers, 1);
  EXPECT_TRUE(setup.options.get<DelayWgradOptions>().whole_layers);
  EXPECT_FALSE(setup.options.get<DeferHeadWgradOptions>().enabled);
  EXPECT_TRUE(setup.options.get<FillCooldownOptions>().enabled);
  EXPECT_FALSE(setup.context.may_change_rounding);
  EXPECT_TRUE(overlap_setup({.may_change_rounding = true}).context.may_change_rounding);
}

TEST(OverlapSetup, PassesAreAskedForByKeysThatCount) {
  const auto asked = [](std::string_view name, const OverlapConfig& overlap) {
    for (const Pass& pass : default_pipeline()) {
      if (pass.name == name) {
        return is_asked_for(pass, overlap);
      }
    }
    ADD_FAILURE() << "no pass " << name;
    return false;
  };
  EXPECT_TRUE(asked("split_ops", {.mode = "manual", .split_ops = true}));
  EXPECT_FALSE(asked("split_ops", {.mode = "manual"}));
  EXPECT_FALSE(asked("split_ops", {.mode = "auto", .split_ops = true}));
  EXPECT_TRUE(asked("list_schedule", {.mode = "auto", .list_schedule = true}));
  EXPECT_FALSE(asked("insert_events", {.mode = "manual"}));  // which no key turns off
}

TEST(OverlapSetup, TheEngineOfCommunicationIsChosenInAnyMode) {
  for (const char* const mode : {"auto", "manual", "off"}) {
    const auto engine = [mode](const char* name) {
      return overlap_setup({.mode = mode, .comm_engine = name})
          .options.get<CommEngineOptions>()
          .engine;
    };
    EXPECT_EQ(engine("auto"), CommEngine::kAuto);
    EXPECT_EQ(engine("sm"), CommEngine::kSm);
    EXPECT_EQ(engine("copy"), CommEngine::kCopy);
    EXPECT_EQ(engine("hidden"), CommEngine::kAuto);  // until the whole step is simulated
    EXPECT_EQ(engine("nccl_copy"), CommEngine::kNcclCopy);
  }
}

TEST(OverlapSetup, OffTurnsOffWhatOnlyOverlaps) {
  const std::vector<std::string> disabled = overlap_setup({.mode = "off"}).disabled_passes;
  for (const char* const pass :
       {"delay_wgrad", "delay_last_wgrad", "defer_head_wgrad", "fill_cooldown",
        "overlap_grad_reduce", "p2p_streams", "assign_streams"}) {
    EXPECT_THAT(disabled, Contains(pass));
  }
  EXPECT_THAT(disabled, Not(Contains("insert_events")));
}

TEST(OverlapSetup, ManualDoesWhatTheKeysSay) {
  const OverlapSetup none = overlap_setup({.mode = "manual"});
  EXPECT_THAT(none.disabled_passes, Contains("overlap_grad_reduce"));
  EXPECT_FALSE(none.options.get<P2pStreamsOptions>().enabled);
  EXPECT_EQ(none.options.get<DelayWgradOptions>().num_layers, 0);
  EXPECT_EQ(none.options.get<DelayLastWgradOptions>().num_layers, 0);
  EXPECT_FALSE(none.options.get<DeferHeadWgradOptions>().enabled);
  EXPECT_FALSE(none.options.get<FillCooldownOptions>().enabled);
  const OverlapSetup all = overlap_setup({.mode = "manual",
                                          .overlap_grad_reduce = true,
                                          .overlap_grad_reduce_delayed_wgrad_layers = 4,
                                          .overlap_p2p_comm = true,
                                          .overlap_p2p_comm_warmup_flush = true,
                                          .overlap_p2p_backward_on_comm_stream = true,
                                          .overlap_p2p_wgrad_delayed_layer_number = 3,
                                          .overlap_p2p_with_transformer_layer_wgrad = true,
                                          .defer_embedding_wgrad_compute = true,
                                          .wgrad_deferral_limit = 5,
                                          .fill_cooldown = true});
  EXPECT_THAT(all.disabled_passes, Not(Contains("overlap_grad_reduce")));
  EXPECT_TRUE(all.options.get<P2pStreamsOptions>().enabled);
  EXPECT_TRUE(all.options.get<P2pStreamsOptions>().warmup_flush);
  EXPECT_TRUE(all.options.get<P2pStreamsOptions>().backward_on_comm_stream);
  EXPECT_EQ(all.options.get<DelayWgradOptions>().num_layers, 3);
  EXPECT_TRUE(all.options.get<DelayWgradOptions>().whole_layers);
  EXPECT_EQ(all.options.get<DelayLastWgradOptions>().num_layers, 4);
  EXPECT_TRUE(all.options.get<DeferHeadWgradOptions>().enabled);
  EXPECT_EQ(all.options.get<DeferHeadWgradOptions>().limit, 5);
  EXPECT_TRUE(all.options.get<FillCooldownOptions>().enabled);
  // Each key is one option.
  EXPECT_FALSE(overlap_setup({.mode = "manual", .overlap_p2p_comm = true})
                   .options.get<P2pStreamsOptions>()
                   .backward_on_comm_stream);
  EXPECT_FALSE(overlap_setup({.mode = "manual", .overlap_p2p_wgrad_delayed_layer_number = 1})
                   .options.get<DelayWgradOptions>()
                   .whole_layers);
}

TEST(OverlapSetup, SplitOpsMayChangeRoundingAndKeepsTheSmallestPieces) {
  EXPECT_FALSE(overlap_setup({}).options.get<SplitOpsOptions>().enabled);
  EXPECT_FALSE(overlap_setup({.mode = "manual"}).options.get<SplitOpsOptions>().enabled);
  OverlapConfig overlap{.mode = "manual"};
  overlap.split_ops = true;
  overlap.tp_comm_overlap_min_rows = 64;
  const OverlapSetup setup = overlap_setup(overlap);
  EXPECT_TRUE(setup.options.get<SplitOpsOptions>().enabled);
  EXPECT_EQ(setup.options.get<SplitOpsOptions>().min_rows, 64);
  EXPECT_TRUE(setup.context.may_change_rounding);
}

// Only what is cut into pieces may be rounded in another way.
TEST(OverlapSetup, TensorKeysChooseTheMethodOfEachProduct) {
  EXPECT_FALSE(overlap_setup({}).context.may_change_rounding);
  EXPECT_THAT(overlap_setup({.mode = "off"}).disabled_passes, Contains("bulk_overlap"));
  const OverlapSetup none = overlap_setup({.mode = "manual"});
  EXPECT_THAT(none.disabled_passes, Contains("ring_exchange"));
  EXPECT_THAT(none.disabled_passes, Contains("bulk_overlap"));
  EXPECT_FALSE(none.context.may_change_rounding);
  OverlapConfig overlap{.mode = "manual", .tp_comm_overlap = true};
  overlap.tp_comm_overlap_min_rows = 7;
  const OverlapSetup all = overlap_setup(overlap);
  EXPECT_THAT(all.disabled_passes, Not(Contains("ring_exchange")));
  EXPECT_TRUE(all.context.may_change_rounding);
  EXPECT_EQ(all.options.get<RingExchangeOptions>().sites, default_site_overlaps());
  EXPECT_EQ(all.options.get<BulkOverlapOptions>().sites, default_site_overlaps());
  EXPECT_EQ(all.options.get<RingExchangeOptions>().min_rows, 7);
  overlap.tp_comm_overlap_ag = false;
  overlap.tp_comm_overlap_rs = false;
  EXPECT_FALSE(overlap_setup(overlap).context.may_change_rounding);
  overlap.tp_comm_overlap_sites = {"fc2_fprop=chunked:3"};
  const OverlapSetup one = overlap_setup(overlap);
  EXPECT_TRUE(one.context.may_change_rounding);
  EXPECT_EQ(one.options.get<RingExchangeOptions>().sites.at("fc2_fprop"),
            (SiteOverlap{OverlapMethod::kChunked, 3}));
}

}  // namespace
}  // namespace braid
