// Messages between pipeline stages, and the weight gradients round them, under every setting of
// section [overlap]: the same bits, and memory that grows with what waits.

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "config/load.h"
#include "plan/run_spec.h"
#include "support/engine_runs.h"
#include "support/thinned.h"

namespace braid {
namespace {

struct Pipeline {
  const char* schedule;
  int64_t virtual_stages = 1;
  std::vector<std::string> more = {};
  std::vector<int> flags = {0, 1, 2, 3, 4, 5, 6, 7};

  friend std::ostream& operator<<(std::ostream& stream, const Pipeline& pipeline) {
    return stream << pipeline.schedule << " " << testing::PrintToString(pipeline.more);
  }
};

RunConfig config_of(const Pipeline& pipeline) {
  std::vector<std::string> overrides = {"model.layers=4",
                                        "model.width=16",
                                        "model.heads=2",
                                        "model.kv_heads=2",
                                        "train.sequence=8",
                                        "train.microbatch=1",
                                        "train.global_batch=4",
                                        "optimizer.learning_rate=3e-3",
                                        "logging.run_folder=unused",
                                        "parallel.ranks=2",
                                        "parallel.pipeline=2",
                                        std::string("parallel.schedule=") + pipeline.schedule};
  overrides.push_back("parallel.virtual_stages=" + std::to_string(pipeline.virtual_stages));
  overrides.insert(overrides.end(), pipeline.more.begin(), pipeline.more.end());
  return parse_config("", "p2p", overrides);
}

/// "manual", with the three switches in the bits of `flags`.
OverlapConfig manual(int flags, int64_t delayed_layers) {
  OverlapConfig overlap;
  overlap.mode = "manual";
  overlap.overlap_grad_reduce = true;
  overlap.overlap_p2p_comm = true;
  overlap.overlap_p2p_comm_warmup_flush = (flags & 1) != 0;
  overlap.overlap_p2p_backward_on_comm_stream = (flags & 2) != 0;
  overlap.overlap_p2p_with_transformer_layer_wgrad = (flags & 4) != 0 && delayed_layers > 0;
  overlap.overlap_p2p_wgrad_delayed_layer_number = delayed_layers;
  return overlap;
}

class P2pOverlap : public testing::TestWithParam<Pipeline> {};

// One step: its losses, gradient norm, and moments, which are the gradients up to a factor. All
// ranks' programs are checked against each other when they are planned.
TEST_P(P2pOverlap, ChangesNoBit) {
  RunConfig config = config_of(GetParam());
  config.overlap.mode = "off";
  const Outcome off = run(config, 1);
  config.overlap = OverlapConfig();
  expect_same_bits(run(config, 1), off);
  for (const int flags : thinned(GetParam().flags, 3)) {
    for (const int64_t delayed_layers : thinned<int64_t>({0, 1, 2, 4, 7}, 2)) {
      SCOPED_TRACE(testing::Message() << "flags " << flags << ", layers " << delayed_layers);
      config.overlap = manual(flags, delayed_layers);
      config.overlap.defer_embedding_wgrad_compute = delayed_layers % 2 == 1;
      config.overlap.wgrad_deferral_limit = delayed_layers == 7 ? 2 : 0;
      expect_same_bits(run(config, 1), off);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, P2pOverlap,
                         testing::Values(Pipeline{"gpipe"}, Pipeline{"1f1b"},
                                         Pipeline{"interleaved", 2}, Pipeline{"zb-h1"},
                                         Pipeline{"zb-v", 2, {"model.tied_embeddings=true"}},
                                         Pipeline{"dualpipe-v", 2}));

// Beside what else moves tasks or cuts them up.
INSTANTIATE_TEST_SUITE_P(Layouts, P2pOverlap,
                         testing::Values(Pipeline{"1f1b",
                                                  1,
                                                  {"parallel.ranks=4", "parallel.shard=gradients",
                                                   "train.global_batch=8"},
                                                  {1, 7}},
                                         Pipeline{"interleaved",
                                                  2,
                                                  {"parallel.ranks=4", "parallel.tensor=2",
                                                   "parallel.sequence_parallel=true"},
                                                  {1, 7}}));

/// Of the last stage, which sends gradients and has the head.
int64_t step_bytes(const RunConfig& config) {
  const RunPlan plan = plan_run(resolve_run(resolved(config), 50));
  return plan.ranks.back().memory.programs[kTrainProgram].max_live_bytes;
}

TEST(P2pOverlapMemory, GrowsWithTheLayersThatWait) {
  RunConfig config = config_of({"1f1b"});
  config.train.global_batch = 2;
  int64_t before = 0;
  for (const int64_t delayed_layers : {0, 1, 2, 5}) {
    SCOPED_TRACE(delayed_layers);
    config.overlap = manual(7, delayed_layers);
    const int64_t bytes = step_bytes(config);
    EXPECT_GE(bytes, before);
    before = bytes;
  }
}

TEST(P2pOverlapMemory, OfTheDeferredHeadHasALimit) {
  RunConfig config = config_of({"1f1b"});
  config.overlap = manual(7, 1);
  const int64_t none = step_bytes(config);
  config.overlap.defer_embedding_wgrad_compute = true;
  const int64_t all = step_bytes(config);
  config.overlap.wgrad_deferral_limit = 2;
  const int64_t two = step_bytes(config);
  EXPECT_LT(none, two);
  EXPECT_LT(two, all);
}

}  // namespace
}  // namespace braid
