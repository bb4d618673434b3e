#include "plan/emulated_peers.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "memory/lasting_buffers.h"
#include "ops/expert_exchange.h"
#include "ops/meets_others.h"
#include "ops/offload.h"
#include "plan/rank_programs.h"

namespace braid {
namespace {

/// Throws unless `rank` is planned. Ranks that are not planned differ from a planned one only in
/// the data dimension.
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
  const bool exists = rank >= 0 && rank < plan.run.mesh.num_ranks();
  throw_config_error("--rank {}: {}; take one of {}{}", rank,
                     exists ? "it does what a rank with another part of the data does"
                            : fmt::format("the run has {} ranks", plan.run.mesh.num_ranks()),
                     join(planned, ", "), plan.ranks.size() > kMostNamed ? ", ..." : "");
}

/// Whether peers send the result of a task once and for all: exchanged rows must fit the offsets of
/// their step.
bool may_last(const OpSpec& spec) {
  return !exchanges_rows(spec);
}

/// Calls `use` with the task, the BufferId and the bytes of each buffer that is written by tasks
/// that communicate and may last, or (`communicate` false) by all other tasks.
void for_each_written(
    const Program& program, bool communicate,
    const std::function<void(const Task& task, size_t buffer, int64_t num_bytes)>& use) {
  const std::vector<bool> meets = tasks_that_meet_others(program);
  for (size_t task = 0; task < program.tasks.size(); ++task) {
    const OpSpec& spec = program.spec(program.tasks[task]);
    const auto ranges = program.operands_of(program.tasks[task]);
    const bool is_meant = (meets[task] && may_last(spec)) == communicate && !does_nothing(spec);
    for (size_t i = 0; i < ranges.size() && is_meant; ++i) {
      if (writes(spec.operands[i].access)) {
        use(program.tasks[task], ranges[i].buffer.index(),
            (ranges[i].end - ranges[i].begin) *
                static_cast<int64_t>(dtype_bytes(spec.operands[i].dtype)));
      }
    }
  }
}

/// If a kernel adds to received data, the sum must last too. If two such sums shared memory, the
/// value would grow with each kernel and overflow floating point in a ring of many layers.
std::vector<Lasting> lasting_results(const Program& program, const EmulatedPeers& peers) {
  std::vector<Lasting> lasting(program.buffers.size(), Lasting::kNot);
  for_each_written(program, true, [&](const Task& task, size_t buffer, int64_t num_bytes) {
    if (num_bytes > peers.anew_bytes_of(program, task)) {
      lasting[buffer] = Lasting::kAmongOthers;
    }
  });
  for_each_written(program, false, [&](const Task&, size_t buffer, int64_t) {
    if (lasting[buffer] != Lasting::kNot) {
      lasting[buffer] = Lasting::kAlone;
    }
  });
  return lasting;
}

}  // namespace

EmulatedPeers emulated_peers(const SimulatedRun& run, int rank) {
  check_is_planned(run.plan(), rank);
  const RankPlan& planned = plan_of_rank(run.plan(), rank);
  const RankPrograms programs = run.rank_programs();
  const SimRank& simulated =
      run.result().ranks.at(run.result().alike.kind_of.at(static_cast<size_t>(rank)));
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
  std::vector<std::vector<Lasting>> lasting;
  for (const Program& program : planned.programs) {
    lasting.emplace_back(program.buffers.size(), Lasting::kNot);
  }
  lasting[kTrainProgram] = lasting_results(planned.programs[kTrainProgram], peers);
  return with_lasting_buffers(planned.memory, planned.programs, lasting);
}

}  // namespace braid
