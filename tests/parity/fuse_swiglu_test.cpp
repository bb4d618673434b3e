// A product and the SwiGLU beside it as one task, under every kind of layout and beside everything
// that splits, repeats and moves tasks: not a bit of the training changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "parity/layout_config.h"
#include "plan/run_spec.h"
#include "support/engine_runs.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

RunConfig with_fuse_swiglu(const Layout& layout, const char* choice) {
  RunConfig config = config_of(layout);
  config.runtime.fuse_swiglu = choice;
  return config;
}

PassReport report_of(const RunConfig& config) {
  const RunPlan plan = plan_run(resolve_run(config, 50));
  const std::vector<PassRecord>& passes = plan.ranks.front().passes;
  const auto found = std::ranges::find(passes, "fuse_swiglu", &PassRecord::name);
  return found == passes.end() ? PassReport{} : found->report;
}

/// Products in as many blocks of rows as there are ranks.
constexpr const char* kRings =
    " overlap.mode=manual overlap.tp_comm_overlap=true overlap.tp_comm_overlap_min_rows=1";

class FuseSwigluOf : public testing::TestWithParam<Layout> {};

TEST_P(FuseSwigluOf, ChangesNoBit) {
  constexpr int64_t kSteps = 2;
  const RunConfig on = with_fuse_swiglu(GetParam(), "on");
  const RunConfig off = with_fuse_swiglu(GetParam(), "off");
  EXPECT_GT(report_of(on).num_changes, 0);
  EXPECT_EQ(report_of(off).num_changes, 0);
  const Outcome expected = run(off, kSteps);
  EXPECT_NE(expected.losses[0], expected.losses[1]);
  expect_same_bits(run(on, kSteps), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, FuseSwigluOf,
    testing::ValuesIn(thinned(
        std::vector<Layout>{
            Layout{kLlamaModel, "ranks=1"}, Layout{kLlamaModel, "ranks=1 train.dtype=bfloat16"},
            Layout{kLlamaModel, "ranks=2 overlap.mode=off shard=optimizer"},
            Layout{kLlamaModel, "ranks=1 memory.recompute=full"},
            Layout{kQwenModel, "ranks=2 context=2 memory.recompute=norms"},
            Layout{kLlamaModel, "ranks=2 pipeline=2 schedule=zb-h1 memory.recompute=attention"},
            Layout{
                kLlamaModel,
                "ranks=2 memory.recompute=full memory.offload_layers=3 memory.offload_min_bytes=1"},
            Layout{kQwenModel,
                   "ranks=4 pipeline=2 virtual_stages=2 schedule=interleaved shard=parameters "
                   "memory.recompute=full"},
            Layout{kLlamaModel,
                   "ranks=2 tensor=2 sequence_parallel=true memory.recompute=norms "
                   "overlap.mode=manual overlap.tp_comm_overlap=true "
                   "overlap.tp_comm_overlap_min_rows=1 overlap.tp_comm_overlap_rs_dgrad=true "
                   "overlap.tp_comm_bulk_wgrad=false "
                   "overlap.tp_comm_overlap_sites=[\"fc2_fprop=ring\",\"fc2_dgrad=none\"]"},
            Layout{kLlamaModel, std::string("ranks=4 tensor=4 sequence_parallel=true") + kRings +
                                    " train.sequence=16"},
            Layout{kQwenModel, std::string("ranks=4 tensor=2 pipeline=2 schedule=zb-h1 "
                                           "sequence_parallel=true train.dtype=bfloat16 "
                                           "memory.recompute=full") +
                                   kRings},
            Layout{kLlamaModel, std::string("ranks=4 tensor=2 sequence_parallel=true "
                                            "memory.recompute=attention overlap.list_schedule=true "
                                            "overlap.split_ops=true overlap.cost=h200x4") +
                                    kRings},
            Layout{kLlamaModel,
                   "ranks=2 tensor=2 sequence_parallel=true overlap.mode=manual "
                   "overlap.tp_comm_overlap=true overlap.tp_comm_overlap_ag=false "
                   "overlap.tp_comm_overlap_rs=false overlap.pair_forward_backward=halves"},
            Layout{kLlamaModel,
                   "ranks=4 pipeline=2 tensor=2 overlap.mode=manual overlap.list_schedule=true "
                   "overlap.cost=h200x4 overlap.comm_engine=hidden"},
            Layout{kLlamaModel,
                   "ranks=8 tensor=2 context=2 pipeline=2 virtual_stages=2 schedule=zb-v "
                   "sequence_parallel=true shard=gradients train.dtype=bfloat16"}},
        4)));

std::string summary(const std::string& overrides) {
  return report_of(with_fuse_swiglu({kLlamaModel, overrides}, "on")).summary;
}

// All of them are fused, also if the whole layer is recomputed: then before the backward's product.
TEST(FuseSwiglu, LeavesNoSwigluAloneWhereProductsAreWhole) {
  // 4 layers, 8 microbatches, forward and backward.
  EXPECT_THAT(summary("ranks=1"), HasSubstr("64 of 64 "));
  EXPECT_THAT(summary("ranks=2 tensor=2 sequence_parallel=true"), HasSubstr("64 of 64 "));
  EXPECT_THAT(summary("ranks=2 pipeline=2 schedule=zb-h1"), HasSubstr("32 of 32 "));
  EXPECT_THAT(summary("ranks=1 memory.recompute=full"), HasSubstr("96 of 96 "));
  EXPECT_THAT(summary("ranks=2 shard=parameters memory.recompute=full"), HasSubstr("48 of 48 "));
  // What is made again of a product that is kept stays alone.
  EXPECT_THAT(summary("ranks=1 memory.recompute=norms"), HasSubstr("64 of 96 "));
}

// Blocks of rows take their rows of SwiGLU. What is made again of a product that is kept is whole,
// and so is the backward's where all of the layer is made again, after a ring that its product
// hides.
TEST(FuseSwiglu, LeavesNoSwigluAloneWhereProductsAreInBlocks) {
  const std::string two = std::string("ranks=2 tensor=2 sequence_parallel=true") + kRings;
  EXPECT_THAT(summary(two), HasSubstr("64 of 64 "));
  EXPECT_THAT(summary(two + " memory.recompute=norms"), HasSubstr("64 of 96 "));
  EXPECT_THAT(summary(two + " memory.recompute=full"), HasSubstr("64 of 96 "));
  EXPECT_THAT(summary(two + " overlap.tp_comm_overlap_sites=[\"fc2_dgrad=none\"]"),
              HasSubstr("64 of 64 "));
  EXPECT_THAT(
      summary(std::string("ranks=4 tensor=4 sequence_parallel=true train.sequence=16") + kRings),
      HasSubstr("64 of 64 "));
}

// Else a GPU, where one kernel may round the product in another way than two, could give other bits
// with overlap than without.
TEST(FuseSwiglu, ThePairsAreTheSameWithOverlapAndWithout) {
  constexpr const char* kBulk =
      " overlap.mode=manual overlap.tp_comm_overlap=true overlap.tp_comm_overlap_ag=false "
      "overlap.tp_comm_overlap_rs=false overlap.overlap_grad_reduce=true";
  const std::vector<std::string> layouts = {
      "ranks=2 shard=parameters",
      "ranks=2 tensor=2",
      "ranks=2 tensor=2 sequence_parallel=true",
      "ranks=2 context=2",
      "ranks=2 pipeline=2 schedule=zb-h1",
      "ranks=4 tensor=2 sequence_parallel=true shard=parameters",
      "ranks=4 pipeline=2 virtual_stages=2 schedule=interleaved shard=optimizer"};
  for (const std::string& layout : layouts) {
    for (const char* const recompute : {"none", "norms", "attention", "full"}) {
      for (const bool offload : {false, true}) {
        const std::string words =
            fmt::format("{} memory.recompute={}{}", layout, recompute,
                        offload ? " memory.offload_layers=2 memory.offload_min_bytes=1" : "");
        const bool scatters = words.find("sequence_parallel") != std::string::npos;
        const auto summary = [&](const std::string& overlap) {
          return report_of(with_fuse_swiglu({kLlamaModel, words + overlap}, "on")).summary;
        };
        const std::string off = summary(" overlap.mode=off");
        EXPECT_EQ(summary(" overlap.mode=auto"), off) << words;
        if (words.find("tensor=") != std::string::npos) {
          EXPECT_EQ(
              summary(kBulk + std::string(scatters ? "" : " overlap.tp_comm_bulk_dgrad=false")),
              off)
              << words;
        }
      }
    }
  }
}

}  // namespace
}  // namespace braid
