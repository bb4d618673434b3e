#include "plan/emulated_peers.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "backends/step_progress.h"
#include "base/errors.h"
#include "base/text.h"
#include "memory/lasting_buffers.h"
#include "plan/rank_programs.h"

namespace braid {
namespace {

/// The others differ from one of these in their place in the data dimension only.
void check_is_planned(const RunPlan& plan, int rank) {
  constexpr size_t kMostNamed = 16;
  std::vector<std::string> planned;
  for (const RankPlan& it : plan.ranks) {
    if (it.programs[kTrainProgram].rank == rank) {
      return;
    }
    if (planned.size() < kMostNamed) {
      planned.push_back(std::to_string(it.programs[kTrainProgram].rank));
    }
  }
  const bool exists = rank >= 0 && rank < plan.mesh.num_ranks();
  throw_config_error("--rank {}: {}; take one of {}{}", rank,
                     exists ? "it does what a rank with another part of the data does"
                            : fmt::format("the run has {} ranks", plan.mesh.num_ranks()),
                     join(planned, ", "), plan.ranks.size() > kMostNamed ? ", ..." : "");
}

void mark_results(const Program& program, const Task& task, std::vector<bool>& is_result) {
  const OpSpec& spec = program.spec(task);
  const auto ranges = program.operands_of(task);
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (writes(spec.operands[i].access)) {
      is_result[ranges[i].buffer.index()] = true;
    }
  }
}

}  // namespace

EmulatedPeers emulated_peers(const SimulatedRun& run, int rank) {
  check_is_planned(run.plan(), rank);
  const RankPlan& planned = plan_of_rank(run.plan(), rank);
  const RankPrograms programs = run.rank_programs();
  const SimRank& simulated =
      run.result().ranks.at(run.result().rank_of.at(static_cast<size_t>(rank)));
  const std::span<const TaskTimes> times = times_of(programs, run.result(), simulated);
  const Program& program = planned.programs[kTrainProgram];
  check(times.size() == program.tasks.size(), "rank {} has {} tasks, its simulation {}", rank,
        program.tasks.size(), times.size());
  EmulatedPeers peers;
  for (const Program& it : planned.programs) {
    peers.task_ns.emplace_back(it.tasks.size(), 0);
  }
  for (size_t task = 0; task < times.size(); ++task) {
    peers.task_ns[kTrainProgram][task] =
        std::max<int64_t>(times[task].end_ns - times[task].start_ns, 0);
  }
  return peers;
}

MemoryPlan memory_with(const EmulatedPeers& peers, const RankPlan& planned) {
  if (peers.every_step) {
    return planned.memory;
  }
  std::vector<std::vector<bool>> lasting;
  for (const Program& program : planned.programs) {
    lasting.emplace_back(program.buffers.size());
  }
  const Program& program = planned.programs[kTrainProgram];
  for (const Task& task : program.tasks) {
    if (meets_others(program, task)) {
      mark_results(program, task, lasting[kTrainProgram]);
    }
  }
  return with_lasting_buffers(planned.memory, planned.programs, lasting);
}

}  // namespace braid
