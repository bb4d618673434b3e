#include <gmock/gmock.h>

#include <algorithm>

#include "plan/run_spec.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "support/memory_runs.h"

namespace braid {
namespace {

/// What the rank that needs most takes of an H100, by `braid simulate` and by a search for layouts,
/// which plan in other ways.
int64_t simulated_bytes(const RunConfig& config, PlannedRanks planned) {
  const auto model = make_analytic_model(
      cluster_for_ranks(*find_device("h100"), static_cast<int>(config.parallel.ranks)));
  const SimulatedRun run(resolve_run(config, kMemoryVocabulary), *model, {}, planned);
  int64_t most = 0;
  for (const StageMemory& stage : run.memory_by_stage()) {
    most = std::max(most, stage.needed_bytes);
  }
  return most;
}

/// By the check of `braid train` and `braid plan`.
int64_t checked_bytes(const RunConfig& config) {
  const RunMemory memory{.gpu = memory_of(*find_device("h100")), .host_bytes = std::nullopt};
  return memory_uses(memory_plan_of(config), memory).front().needs.bytes();
}

TEST(MemoryAgreement, PlanTrainAndSimulateSayTheSame) {
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"parallel.ranks=4"},
           {"parallel.ranks=4", "parallel.shard=parameters"},
           {"parallel.ranks=8", "parallel.tensor=2", "parallel.sequence_parallel=true",
            "parallel.shard=optimizer", "memory.recompute=attention"},
           {"parallel.ranks=4", "parallel.pipeline=2", "parallel.virtual_stages=2",
            "parallel.schedule=interleaved", "train.microbatch=1"},
           {"parallel.ranks=4", "parallel.context=2", "memory.recompute=full"}}) {
    const RunConfig config = memory_config(layout);
    const auto checked = static_cast<double>(checked_bytes(config));
    const auto part = [&](PlannedRanks planned) {
      return static_cast<double>(simulated_bytes(config, planned)) / checked;
    };
    // A simulation plans one of the ranks that are alike, and buffers of another may pack a little
    // tighter: a run plans every rank.
    EXPECT_NEAR(part(PlannedRanks::kEveryPlace), 1, 1e-3) << layout.back();
    EXPECT_NEAR(part(PlannedRanks::kOnePerStage), 1, 0.02) << layout.back();  // a quick plan
  }
}

}  // namespace
}  // namespace braid
