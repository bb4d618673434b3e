#include "plan/rank_kinds.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/errors.h"
#include "parallel/call_lines.h"
#include "plan/rank_programs.h"

namespace braid {
namespace {

int rank_of(const RankPlan& plan) {
  return plan.programs[kTrainProgram].rank;
}

RankPrograms programs_of(const Mesh& mesh, const PlannedKinds& kinds, size_t program) {
  RankPrograms result;
  for (const RankPlan* const plan : kinds.of_kind) {
    result.programs.push_back(&plan->programs[program]);
  }
  result.program_of = kinds.alike.kind_of;
  take_groups_of(mesh, result);
  return result;
}

/// Plans one rank alone, so that only one full plan is in memory at a time; of the others only the
/// programs remain.
RankPlan plan_alone(const RunSpec& run, int rank, bool verify) {
  RunPlan plan = plan_run(run, {.ranks = {rank}, .verify = verify});
  return std::move(plan.ranks.front());
}

}  // namespace

ShownCalls shown_calls(const RankPlan& rank) {
  ShownCalls shown;
  for (const Program& program : rank.programs) {
    shown.push_back(hash_of_lines(call_lines(program)));
  }
  return shown;
}

PlannedKinds plan_kinds(const RunPlan& plan, AlikeRanks alike) {
  std::map<int, const RankPlan*> planned;
  for (const RankPlan& rank : plan.ranks) {
    planned.emplace(rank_of(rank), &rank);
  }
  PlannedKinds kinds{.alike = std::move(alike), .ranks = {}, .of_kind = {}};
  std::vector<int> missing;
  std::ranges::copy_if(kinds.alike.stand_ins, std::back_inserter(missing),
                       [&](int rank) { return !planned.contains(rank); });
  if (plan.run.is_scheduled && !missing.empty()) {  // each call would order the leading ranks again
    kinds.ranks = plan_run(plan.run, {.ranks = missing, .verify = false}).ranks;
  } else {
    for (const int rank : missing) {
      kinds.ranks.push_back(plan_alone(plan.run, rank, /*verify=*/false));
    }
  }
  for (const RankPlan& rank : kinds.ranks) {
    planned.emplace(rank_of(rank), &rank);
  }
  for (const int rank : kinds.alike.stand_ins) {
    kinds.of_kind.push_back(planned.at(rank));
  }
  return kinds;
}

PlannedKinds plan_every_rank(const RunSpec& run) {
  PlannedKinds kinds;
  std::vector<ShownCalls> shown;
  std::set<ShownCalls> known;
  const auto add = [&](RankPlan&& rank) {
    check_groups(run.mesh, rank);
    shown.push_back(shown_calls(rank));
    if (known.insert(shown.back()).second) {
      kinds.ranks.push_back(std::move(rank));
    }
  };
  if (run.is_scheduled) {  // for all ranks at once
    for (RankPlan& rank : plan_run(run).ranks) {
      add(std::move(rank));
    }
  } else {
    for (int rank = 0; rank < run.mesh.num_ranks(); ++rank) {
      add(plan_alone(run, rank, /*verify=*/true));
    }
  }
  kinds.alike = alike_ranks(shown);
  for (const RankPlan& rank : kinds.ranks) {
    kinds.of_kind.push_back(&rank);
  }
  return kinds;
}

void verify_kinds(const Mesh& mesh, const PlannedKinds& kinds) {
  for (const size_t program : {kTrainProgram, kEvalProgram}) {
    const RankPrograms programs = programs_of(mesh, kinds, program);
    verify_ranks_or_throw(
        programs, fmt::format("the passes over program {}", programs.programs.front()->name),
        {.one_order_of_collectives = true, .one_order_of_messages = true});
  }
}

void check_groups(const Mesh& mesh, const RankPlan& rank) {
  for (const Program& program : rank.programs) {
    for (const Group& group : program.groups) {
      check(group == mesh.group(group.name, program.rank),
            "group {} in program {} of rank {} is not that of the mesh", group.name, program.name,
            program.rank);
    }
  }
}

}  // namespace braid
