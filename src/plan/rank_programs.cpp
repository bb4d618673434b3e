#include "plan/rank_programs.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

using Place = std::tuple<int, int, int, int, int>;

Place place_of_rank(const Mesh& mesh, int rank) {
  const MeshPosition at = mesh.position(rank);
  const ExpertPosition experts = mesh.expert_position(rank);
  return {at.tensor, at.context, at.pipeline, experts.expert, experts.expert_tensor};
}

/// The part of a place that tells leading ranks apart.
using LeadingPlace = std::pair<int, int>;

LeadingPlace leading_place(const Mesh& mesh, int rank) {
  const MeshPosition at = mesh.position(rank);
  return {at.context, at.pipeline};
}

bool leads(const Mesh& mesh, int rank) {
  const MeshPosition at = mesh.position(rank);
  return at.tensor == 0 && at.data == 0;
}

int rank_of(const RankPlan& plan) {
  return plan.programs[kTrainProgram].rank;
}

/// Ranks with the index of the plan that is theirs, or stands for theirs. A plan with stand-ins is
/// in order of ranks, so that its result is that of a plan of all of them.
std::vector<std::pair<int, uint32_t>> plans_of_ranks(const RunPlan& plan) {
  std::vector<std::pair<int, uint32_t>> plans;
  std::map<int, uint32_t> planned;
  for (uint32_t i = 0; i < plan.ranks.size(); ++i) {
    plans.emplace_back(rank_of(plan.ranks[i]), i);
    planned.emplace(plans.back());
  }
  for (const StandIn& stand_in : plan.stand_ins) {
    plans.emplace_back(stand_in.rank, planned.at(stand_in.by));
  }
  if (!plan.stand_ins.empty()) {
    std::ranges::sort(plans);
  }
  return plans;
}

}  // namespace

RankPrograms rank_programs(const RunPlan& plan, size_t program) {
  RankPrograms result;
  std::map<int, uint32_t> by_rank;
  std::map<Place, uint32_t> by_place;
  std::map<LeadingPlace, uint32_t> by_leader;
  std::map<int, uint32_t> by_stage;
  for (const auto& [rank, i] : plans_of_ranks(plan)) {
    by_rank.try_emplace(rank, i);
    by_place.try_emplace(place_of_rank(plan.run.mesh, rank), i);
    by_leader.try_emplace(leading_place(plan.run.mesh, rank), i);
    by_stage.try_emplace(plan.run.mesh.position(rank).pipeline, i);
  }
  for (const RankPlan& rank : plan.ranks) {
    result.programs.push_back(&rank.programs[program]);
  }
  for (int rank = 0; rank < plan.run.mesh.num_ranks(); ++rank) {
    const auto exact = by_rank.find(rank);
    const auto alike = by_place.find(place_of_rank(plan.run.mesh, rank));
    const auto leader = by_leader.find(leading_place(plan.run.mesh, rank));
    const auto stage = by_stage.find(plan.run.mesh.position(rank).pipeline);
    check(stage != by_stage.end(), "no rank of the stage of rank {} is planned", rank);
    result.program_of.push_back(exact != by_rank.end()      ? exact->second
                                : alike != by_place.end()   ? alike->second
                                : leader != by_leader.end() ? leader->second
                                                            : stage->second);
  }
  if (plan.ranks.size() < result.program_of.size()) {
    take_groups_of(plan.run.mesh, result);
  }
  return result;
}

void take_groups_of(const Mesh& mesh, RankPrograms& ranks) {
  ranks.ranks_of_group = [mesh, programs = ranks.programs, program_of = ranks.program_of](
                             int rank, GroupId group) {
    const Program& it = *programs[program_of[static_cast<size_t>(rank)]];
    return mesh.group(it.groups[group.index()].name, rank).ranks;
  };
  ranks.first_of_group = [mesh, programs = ranks.programs, program_of = ranks.program_of](
                             int rank, GroupId group) {
    const Program& it = *programs[program_of[static_cast<size_t>(rank)]];
    return mesh.first_in(it.groups[group.index()].name, rank);
  };
}

std::vector<int> leading_ranks(const Mesh& mesh) {
  std::vector<int> ranks;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    if (leads(mesh, rank)) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<size_t> leaders_of(const RunPlan& plan) {
  const Mesh& mesh = plan.run.mesh;
  std::map<LeadingPlace, size_t> planned;
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    if (const int rank = rank_of(plan.ranks[i]); leads(mesh, rank)) {
      planned.emplace(leading_place(mesh, rank), i);
    }
  }
  std::vector<size_t> leaders;
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    const auto found = planned.find(leading_place(mesh, rank_of(plan.ranks[i])));
    leaders.push_back(found == planned.end() ? i : found->second);
  }
  return leaders;
}

RunPlan plan_for_rank(const RunSpec& run, int rank) {
  const std::vector<int> firsts =
      run.is_scheduled ? leading_ranks(run.mesh) : first_rank_of_stages(run.mesh);
  std::set<int> planned(firsts.begin(), firsts.end());
  planned.insert(rank);
  return plan_run(run, {.ranks = {planned.begin(), planned.end()}});
}

const RankPlan& plan_of_rank(const RunPlan& plan, int rank) {
  const auto found = std::ranges::find_if(
      plan.ranks, [&](const RankPlan& each) { return each.programs[kTrainProgram].rank == rank; });
  check(found != plan.ranks.end(), "rank {} is not planned", rank);
  return *found;
}

}  // namespace braid
