// Woven jobs against unwoven ones, under every kind of layout and together with all other ways to
// overlap: the same bits, although orders, streams and the warm-up of the pipeline differ. That the
// calls of all ranks fit together is verified before each run.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "parity/layout_config.h"
#include "plan/run_spec.h"
#include "support/engine_runs.h"
#include "support/thinned.h"

namespace braid {
namespace {

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

/// All that this layout can overlap.
std::string all_overlap(const std::string& layout) {
  std::string keys = " overlap.mode=manual overlap.overlap_grad_reduce=true";
  if (has(layout, "context=")) {
    keys += " overlap.overlap_context_comm=true";
  }
  if (has(layout, "shard=")) {
    keys += " overlap.overlap_param_gather=true";
  }
  if (has(layout, "pipeline=")) {
    keys +=
        " overlap.overlap_p2p_comm=true overlap.overlap_p2p_comm_warmup_flush=true "
        "overlap.overlap_p2p_backward_on_comm_stream=true "
        "overlap.overlap_p2p_wgrad_delayed_layer_number=1 "
        "overlap.overlap_p2p_with_transformer_layer_wgrad=true "
        "overlap.defer_embedding_wgrad_compute=true";
  }
  if (has(layout, "tensor=")) {
    keys +=
        " overlap.tp_comm_overlap=true overlap.tp_comm_overlap_ag=false "
        "overlap.tp_comm_overlap_rs=false";
    keys += has(layout, "sequence_parallel") ? "" : " overlap.tp_comm_bulk_dgrad=false";
  }
  return keys;
}

/// "interleaved 3 of 3 pairs of jobs" of rank 0.
std::string woven(const RunConfig& config) {
  const RunPlan plan = plan_run(resolve_run(config, 0), {.ranks = {0}});
  const auto& passes = plan.ranks.front().passes;
  const auto found = std::ranges::find(passes, "pair_forward_backward", &PassRecord::name);
  return found == passes.end() ? "" : found->report.summary;
}

Outcome run_with(Layout layout, const std::string& overrides) {
  layout.overrides += overrides;
  return run(config_of(layout), 2);
}

class PairedLayouts : public testing::TestWithParam<Layout> {};

TEST_P(PairedLayouts, ChangeNoBit) {
  Layout all = GetParam();
  all.overrides += all_overlap(all.overrides);
  all.overrides += " overlap.pair_forward_backward=forward_backward";
  const RunConfig config = config_of(all);
  EXPECT_NE(woven(config).find("interleaved "), std::string::npos) << woven(config);
  EXPECT_EQ(woven(config).find("interleaved 0"), std::string::npos) << woven(config);
  expect_same_bits(run(config, 2), run_with(GetParam(), " overlap.mode=off"));
}

std::vector<Layout> layouts() {
  std::vector<Layout> list;
  for (const char* const layout :
       {"ranks=2 tensor=2", "ranks=2 tensor=2 sequence_parallel=true memory.recompute=norms",
        "ranks=2 context=2", "ranks=2 context=2 context_method=all_gather",
        "ranks=2 context=2 context_method=a2a", "ranks=4 context=4 context_method=a2a+ring",
        "ranks=4 tensor=2 context=2 sequence_parallel=true", "ranks=4 tensor=2 pipeline=2",
        "ranks=8 tensor=2 pipeline=4 sequence_parallel=true", "ranks=4 context=2 pipeline=2",
        "ranks=6 tensor=2 pipeline=3 virtual_stages=3 schedule=interleaved "
        "pipeline_layout=Et|||t||t|||tL train.global_batch=18",
        "ranks=4 tensor=2 pipeline=2 virtual_stages=2 schedule=interleaved",
        "ranks=4 tensor=2 pipeline=2 virtual_stages=2 schedule=dualpipe-v",
        "ranks=4 tensor=2 pipeline=2 schedule=zb-h1 sequence_parallel=true "
        "memory.recompute=norms",
        "ranks=4 tensor=2 shard=parameters memory.recompute=full",
        "ranks=4 tensor=2 sequence_parallel=true shard=gradients",
        "ranks=4 tensor=2 memory.offload_layers=2 memory.offload_min_bytes=1"}) {
    list.push_back({kLlamaModel, layout});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Layouts, PairedLayouts, testing::ValuesIn(thinned(layouts(), 6)));

// Nothing else is needed for it.
TEST(PairedJobs, ChangeNoBitWithoutOtherOverlap) {
  for (const char* const layout : {"ranks=4 tensor=2 pipeline=2 sequence_parallel=true",
                                   "ranks=2 context=2 context_method=a2a"}) {
    SCOPED_TRACE(layout);
    const Layout base{kLlamaModel, layout};
    expect_same_bits(
        run_with(base, " overlap.mode=manual overlap.pair_forward_backward=forward_backward"),
        run_with(base, " overlap.mode=off"));
  }
}

// Halves of microbatches of two are microbatches of one.
TEST(PairedHalves, HaveTheBitsOfMicrobatchesOfHalfTheSize) {
  for (const char* const layout : thinned<const char*>(
           {"ranks=2 tensor=2", "ranks=2 tensor=2 sequence_parallel=true memory.recompute=norms",
            "ranks=2 context=2 context_method=a2a", "ranks=4 tensor=2 shard=parameters"},
           2)) {
    SCOPED_TRACE(layout);
    const Layout base{kLlamaModel, layout};
    const Outcome off = run_with(base, " overlap.mode=off train.microbatch=1");
    const std::string halves = " overlap.pair_forward_backward=halves";
    expect_same_bits(run_with(base, all_overlap(layout) + halves), off);
    expect_same_bits(run_with(base, " overlap.mode=manual" + halves), off);
  }
}

}  // namespace
}  // namespace braid
