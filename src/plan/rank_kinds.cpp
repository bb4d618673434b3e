#include "plan/rank_kinds.h"

#include <fmt/core.h>

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

/// Of the kinds, each once, in the order of their first ranks.
RankPrograms programs_of(const Mesh& mesh, const PlannedKinds& kinds, size_t program) {
  RankPrograms result;
  std::map<const RankPlan*, uint32_t> index;
  for (const RankPlan* const plan : kinds.of_rank) {
    const auto [found, is_new] =
        index.try_emplace(plan, static_cast<uint32_t>(result.programs.size()));
    if (is_new) {
      result.programs.push_back(&plan->programs[program]);
    }
    result.program_of.push_back(found->second);
  }
  take_groups_of(mesh, result);
  return result;
}

/// Plans one rank, so that no more than one is more than its programs.
RankPlan plan_alone(const RunSpec& run, int rank, bool verify) {
  RunPlan plan = plan_run(run, {.ranks = {rank}, .verify = verify});
  return std::move(plan.ranks.front());
}

/// As `PlannedKinds::of_rank`, out of `planned`, which has the first rank of each kind.
std::vector<const RankPlan*> by_first(std::span<const int> first,
                                      const std::map<int, const RankPlan*>& planned) {
  std::vector<const RankPlan*> of_rank;
  for (const int rank : first) {
    of_rank.push_back(planned.at(rank));
  }
  return of_rank;
}

}  // namespace

size_t PlannedKinds::num_kinds() const {
  return std::set<const RankPlan*>(of_rank.begin(), of_rank.end()).size();
}

ShownCalls shown_calls(const RankPlan& rank) {
  ShownCalls shown;
  for (const Program& program : rank.programs) {
    shown.push_back(hash_of_lines(call_lines(program)));
  }
  return shown;
}

std::vector<int> first_of_kinds(std::span<const ShownCalls> shown) {
  std::map<ShownCalls, int> first;
  std::vector<int> by_rank;
  for (const ShownCalls& calls : shown) {
    by_rank.push_back(first.try_emplace(calls, static_cast<int>(by_rank.size())).first->second);
  }
  return by_rank;
}

PlannedKinds plan_kinds(const RunSpec& run, const RunPlan& plan, std::span<const int> first) {
  std::map<int, const RankPlan*> planned;
  for (const RankPlan& rank : plan.ranks) {
    planned.emplace(rank_of(rank), &rank);
  }
  PlannedKinds kinds;
  for (const int rank : std::set<int>(first.begin(), first.end())) {
    if (!planned.contains(rank)) {
      kinds.ranks.push_back(plan_alone(run, rank, /*verify=*/false));
    }
  }
  for (const RankPlan& rank : kinds.ranks) {
    planned.emplace(rank_of(rank), &rank);
  }
  kinds.of_rank = by_first(first, planned);
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
  std::map<int, const RankPlan*> planned;
  for (const RankPlan& rank : kinds.ranks) {
    planned.emplace(rank_of(rank), &rank);
  }
  kinds.of_rank = by_first(first_of_kinds(shown), planned);
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
