#include "plan/more_room.h"

#include <fmt/format.h>

#include <vector>

#include "config/choices.h"
#include "parallel/parameter_layout.h"

namespace braid {
namespace {

ExpertShard any_shard(const RunSpec& run) {
  return expert_shard(run.mesh, 0, run.parallel);
}

}  // namespace

bool could_have_less_room(const MoeConfig& moe) {
  return moe.capacity == 0 && moe.expert_capacity == 0 &&
         choice<OverflowChoice>(moe.on_overflow) == OverflowChoice::kRerun;
}

bool may_overflow(const RunSpec& run) {
  return may_overflow(run.model, any_shard(run));
}

std::optional<RunSpec> with_more_room(const RunSpec& run) {
  if (!may_overflow(run)) {
    return std::nullopt;
  }
  RunSpec larger = run;
  larger.parallel.expert_capacity *= 2;
  return may_overflow(larger) ? larger : with_full_room(run);
}

RunSpec with_full_room(const RunSpec& run) {
  RunSpec larger = run;
  larger.parallel.expert_capacity = 0;
  return larger;
}

RunPlan plan_again(const RunPlan& plan, const RunSpec& run) {
  PlanOptions options;
  for (const RankPlan& rank : plan.ranks) {
    options.ranks.push_back(rank.programs[kTrainProgram].rank);
  }
  if (std::ssize(options.ranks) == run.mesh.num_ranks()) {
    options.ranks.clear();  // then all ranks are also checked against each other
  }
  return plan_run(run, options);
}

std::string describe_room(const RunSpec& run) {
  return may_overflow(run) ? fmt::format("moe.capacity = {}", run.parallel.expert_capacity)
                           : "room for all rows";
}

}  // namespace braid
