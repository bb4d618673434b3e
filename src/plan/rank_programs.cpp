#include "plan/rank_programs.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "base/philox.h"
#include "ir/text.h"

namespace braid {
namespace {

using Place = std::tuple<int, int, int, int, int>;

Place place_of_rank(const Mesh& mesh, int rank) {
  const MeshPosition at = mesh.position(rank);
  const ExpertPosition experts = mesh.expert_position(rank);
  return {at.tensor, at.context, at.pipeline, experts.expert, experts.expert_tensor};
}

template <class OfRank>
std::vector<uint64_t> of_all(const Mesh& mesh, const OfRank& of_rank) {
  std::vector<uint64_t> all;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    all.push_back(of_rank(rank));
  }
  return all;
}

}  // namespace

RankPrograms rank_programs(const RunPlan& plan, size_t program) {
  RankPrograms result;
  std::map<int, uint32_t> by_rank;
  std::map<Place, uint32_t> by_place;
  std::map<int, uint32_t> by_stage;
  for (uint32_t i = 0; i < plan.ranks.size(); ++i) {
    const Program& it = plan.ranks[i].programs[program];
    result.programs.push_back(&it);
    by_rank.try_emplace(it.rank, i);
    by_place.try_emplace(place_of_rank(plan.run.mesh, it.rank), i);
    by_stage.try_emplace(plan.run.mesh.position(it.rank).pipeline, i);
  }
  for (int rank = 0; rank < plan.run.mesh.num_ranks(); ++rank) {
    const bool has_stand_in = !plan.alike.empty() && !by_rank.contains(rank);
    const auto exact = by_rank.find(has_stand_in ? plan.alike.stand_in(rank) : rank);
    const auto alike = by_place.find(place_of_rank(plan.run.mesh, rank));
    const auto stage = by_stage.find(plan.run.mesh.position(rank).pipeline);
    check(stage != by_stage.end(), "no rank of the stage of rank {} is planned", rank);
    result.program_of.push_back(exact != by_rank.end()    ? exact->second
                                : alike != by_place.end() ? alike->second
                                                          : stage->second);
  }
  if (by_rank.size() < result.program_of.size()) {
    take_groups_of(plan.run.mesh, result);
  }
  return result;
}

void take_groups_of(const Mesh& mesh, RankPrograms& ranks) {
  ranks.ranks_of_group = [&mesh, programs = ranks.programs, program_of = ranks.program_of](
                             int rank, GroupId group) {
    const Program& it = *programs[program_of[static_cast<size_t>(rank)]];
    return mesh.group(it.groups[group.index()].name, rank).ranks;
  };
}

RunPlan plan_for_rank(const RunSpec& run, int rank, const GiveToAll& give_to_all) {
  std::vector<int> firsts = first_rank_of_stages(run.mesh);
  AlikeRanks alike;
  if (run.is_scheduled) {
    const auto hash_of = [&](int of) {
      return structure_hash(
          plan_run(run, {.ranks = {of}, .schedule = false, .verify = false}).ranks.front());
    };
    alike = alike_ranks(give_to_all ? give_to_all(hash_of(rank)) : of_all(run.mesh, hash_of));
    firsts = alike.stand_ins;
  }
  std::set<int> planned(firsts.begin(), firsts.end());
  planned.insert(rank);
  const std::vector<int> in_order(planned.begin(), planned.end());
  return plan_run(run, {.ranks = in_order, .alike = alike});
}

uint64_t structure_hash(const RankPlan& rank) {
  std::string text;
  for (Program program : rank.programs) {
    program.rank = 0;
    for (Group& group : program.groups) {
      group.ranks = {static_cast<int>(group.ranks.size())};
    }
    text += print_program(program);
  }
  return stable_hash(text.data(), text.size());
}

const RankPlan& plan_of_rank(const RunPlan& plan, int rank) {
  const auto found = std::ranges::find_if(
      plan.ranks, [&](const RankPlan& each) { return each.programs[kTrainProgram].rank == rank; });
  check(found != plan.ranks.end(), "rank {} is not planned", rank);
  return *found;
}

std::vector<int> ranks_to_schedule(const Mesh& mesh, std::vector<int> ranks) {
  std::set<Place> places;
  for (const int rank : ranks) {
    places.insert(place_of_rank(mesh, rank));
  }
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    if (places.insert(place_of_rank(mesh, rank)).second) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

}  // namespace braid
