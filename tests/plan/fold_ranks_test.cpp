#include "plan/fold_ranks.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "plan/rank_programs.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "sim/step_clock.h"
#include "support/emulated_layouts.h"

namespace braid {
namespace {

struct Layout {
  const char* name;
  const char* cluster;
  std::vector<std::string> keys;
  size_t num_planned;  ///< of the ranks of the first part of the data
};

/// Of 16 ranks on nodes of 8, if nothing else is said.
std::vector<Layout> layouts() {
  const std::string tensor = "parallel.tensor=4";
  const std::string rows = "parallel.sequence_parallel=true";
  const std::string shard = "parallel.shard=optimizer";
  return {
      {"tensor", "h100x16", {tensor}, 2},
      {"an interleaved pipeline and a padded vocabulary",
       "h100x16",
       {tensor, rows, shard, "parallel.pipeline=2", "parallel.schedule=interleaved",
        "parallel.virtual_stages=2", "model.vocabulary=200"},
       2},
      {"wgrads in bubbles, copies of key/value heads, recompute",
       "h100x16",
       {tensor, rows, "parallel.pipeline=2", "parallel.schedule=zb-h1", "model.kv_heads=2",
        "memory.recompute=norms"},
       6},
      {"a ring of context ranks", "h100x16", {tensor, rows, shard, "parallel.context=2"}, 2},
      {"context ranks that exchange heads",
       "h100x16",
       {"parallel.tensor=2", rows, "parallel.context=2", "parallel.context_method=a2a"},
       4},
      {"experts",
       "h100x16",
       {tensor, rows, shard, "model.experts=8", "model.experts_per_token=2", "model.expert_ffn=32",
        "parallel.expert=4"},
       1},
      {"rings of products, sharded weights",
       "h100x16",
       {tensor, rows, "parallel.shard=parameters", "overlap.mode=manual",
        "overlap.tp_comm_overlap=true", "overlap.tp_comm_overlap_min_rows=1"},
       1},
      {"one order for all ranks",
       "h100x16",
       {tensor, rows, "parallel.pipeline=2", "overlap.mode=manual", "overlap.list_schedule=true"},
       4},
      {"nodes of six, which groups of four straddle",
       "h100x12:6",
       {"parallel.ranks=12", tensor},
       3},
  };
}

RunSpec run_of(const Layout& layout) {
  std::vector<std::string> keys = {
      "model.layers=4",        "model.width=64",       "model.heads=4",
      "model.ffn=128",         "model.vocabulary=256", "train.sequence=64",
      "train.global_batch=48", "data.train=unused",    "logging.run_folder=unused",
      "parallel.ranks=16"};
  keys.insert(keys.end(), layout.keys.begin(), layout.keys.end());
  RunConfig config = parse_config("", "test", keys);
  validate(config);
  return resolve_run(resolved(std::move(config)), 0);
}

std::vector<int> ranks_of_first_data(const Mesh& mesh) {
  std::vector<int> ranks;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    if (mesh.position(rank).data == 0) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

// Every task of every rank begins and ends at the same nanosecond, and every planned rank has the
// memory of those that it stands for, whether or not alike ranks are folded.
TEST(FoldRanks, ChangesNoTimeAndNoMemory) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    const RunSpec run = run_of(layout);
    const auto model = make_analytic_model(parse_cluster(layout.cluster));
    const SimulatedRun folded(run, *model);
    EXPECT_EQ(folded.plan().ranks.size(), layout.num_planned);
    const RunPlan plan = plan_run(run, {.ranks = ranks_of_first_data(run.mesh),
                                        .cost_model = run.is_scheduled ? model.get() : nullptr,
                                        .verify = false});
    ASSERT_EQ(folded.plan().ranks.size() + folded.plan().stand_ins.size(), plan.ranks.size());
    const RankPrograms all = rank_programs(plan);
    const RankPrograms few = folded.rank_programs();
    const SimResult result = simulate_at_clock(MatchedPrograms(all, *model), *model).result;
    EXPECT_EQ(folded.result().step_ns, result.step_ns);
    for (int rank = 0; rank < run.mesh.num_ranks(); ++rank) {
      const RankTimeline expected = simulated_timeline(all, result, rank);
      const RankTimeline actual = simulated_timeline(few, folded.result(), rank);
      ASSERT_EQ(actual.names, expected.names) << "rank " << rank;
      ASSERT_TRUE(actual.tasks == expected.tasks) << "rank " << rank;
      const auto place = static_cast<size_t>(rank);
      ASSERT_EQ(folded.plan().ranks[few.program_of[place]].memory.persistent_bytes,
                plan.ranks[all.program_of[place]].memory.persistent_bytes);
      ASSERT_EQ(folded.plan().ranks[few.program_of[place]].memory.step_bytes,
                plan.ranks[all.program_of[place]].memory.step_bytes);
    }
    const int last = folded.plan().ranks.back().programs[kTrainProgram].rank;
    EXPECT_EQ(folded.plan_with_buffers(last).programs[kTrainProgram].buffers,
              plan_of_rank(plan, last).programs[kTrainProgram].buffers);
  }
}

}  // namespace
}  // namespace braid
