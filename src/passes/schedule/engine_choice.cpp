#include "passes/schedule/engine_choice.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "ops/collectives.h"
#include "ops/op.h"
#include "parallel/rank_calls.h"
#include "passes/gradients/reduction_parts.h"
#include "sim/contention.h"
#include "sim/list_plan.h"
#include "sim/op_family.h"

namespace braid {
namespace {

/// Durations of a spec that both engines can run, each when it runs alone.
struct EngineCosts {
  int64_t sm_ns = 0;
  int64_t copy_ns = 0;
  int64_t sum_ns = 0;  ///< compute for the sum, in addition to the copies
  int sms = 0;         ///< SMs that send
};

std::optional<EngineCosts> engine_costs(const Program& program, const OpSpec& spec,
                                        const CostModel& model) {
  const std::optional<GroupId> id = group_of(program, spec);
  if (!id || is_message(spec) || program.groups[id->index()].ranks.size() < 2) {
    return std::nullopt;
  }
  const Group& group = program.groups[id->index()];
  if (!has_copy_engines(model, place_group(model.cluster(), group.ranks))) {
    return std::nullopt;
  }
  const auto copied_ns = [&](const OpSpec& it) {
    return comm_of(model, by_copy_engine(it), program.rank, group).cost.ns;
  };
  const auto costs_with = [&](int64_t copy_ns, int64_t sum_ns) {
    const ProgramComm comm =
        comm_of(model, copies_suffice(spec.op) ? by_any_engine(spec) : spec, program.rank, group);
    return EngineCosts{.sm_ns = comm.cost.ns,
                       .copy_ns = copy_ns,
                       .sum_ns = sum_ns,
                       .sms = comm_demand(model, comm.spec, comm.cost.ns, comm.slowdown).sms};
  };
  if (copies_suffice(spec.op)) {
    return costs_with(copied_ns(spec), 0);
  }
  const auto all_parts = reduction_parts(spec, static_cast<int64_t>(group.ranks.size()));
  if (all_parts.empty()) {
    return std::nullopt;
  }
  int64_t copy_ns = 0;
  int64_t sum_ns = 0;
  for (const ReductionParts& parts : all_parts) {
    copy_ns += copied_ns(parts.exchange) + (parts.gather ? copied_ns(*parts.gather) : 0);
    sum_ns += model.task_ns(parts.sum);
  }
  return costs_with(copy_ns, sum_ns);
}

/// Compute tasks of one rank in a simulated step, by start time.
class ComputeTimes {
 public:
  struct Beside {
    int64_t ns = 0;      ///< overlap with compute
    double lost_ns = 0;  ///< time that compute loses if SMs send
  };

  ComputeTimes(const Program& program, std::span<const TaskTimes> times,
               const ContentionTable& contention)
      : contention_(contention) {
    std::vector<OpFamily> families;
    for (const OpSpec& spec : program.specs.all()) {
      families.push_back(family_of(spec));
    }
    for (size_t i = 0; i < times.size(); ++i) {
      const OpFamily family = families[program.tasks[i].spec.index()];
      if (computes_on_device(family) && times[i].end_ns > times[i].start_ns) {
        tasks_.push_back({times[i], family});
      }
    }
    std::ranges::sort(tasks_, {}, [](const Task& task) { return task.times.start_ns; });
  }

  /// What a communication at that time overlaps, if it uses `sms` SMs.
  Beside beside(const TaskTimes& comm, int sms) const {
    Beside sum;
    auto it = std::ranges::partition_point(
        tasks_, [&](const Task& task) { return task.times.end_ns <= comm.start_ns; });
    for (; it != tasks_.end() && it->times.start_ns < comm.end_ns; ++it) {
      const int64_t ns =
          std::min(it->times.end_ns, comm.end_ns) - std::max(it->times.start_ns, comm.start_ns);
      const auto rate = static_cast<double>(contention_.compute_rate(it->family, sms));
      sum.ns += ns;
      sum.lost_ns += static_cast<double>(ns) * (1.0 - rate / static_cast<double>(kFullRate));
    }
    return sum;
  }

 private:
  struct Task {
    TaskTimes times;
    OpFamily family = OpFamily::kNothing;
  };

  const ContentionTable& contention_;
  std::vector<Task> tasks_;
};

RankCalls calls_of(const RankPrograms& ranks) {
  std::vector<std::string> faults;
  std::optional<RankCalls> calls = match_calls(ranks, faults);
  check(calls.has_value(), "the programs of {} ranks do not fit together: {}", ranks.num_ranks(),
        join(faults, "; "));
  return std::move(*calls);
}

class EngineChooser {
 public:
  EngineChooser(const RankPrograms& ranks, const SimResult& result, const CostModel& model,
                LongerCopies longer)
      : ranks_(ranks),
        result_(result),
        model_(model),
        longer_(longer),
        contention_(model.contention()),
        calls_(calls_of(ranks)),
        plan_(calls_, model, {}),
        gain_ns_(plan_.meetings().size()),
        is_possible_(plan_.meetings().size()) {}

  std::vector<std::vector<TaskEngine>> run() {
    for (uint32_t program = 0; program < ranks_.programs.size(); ++program) {
      weigh(program);
    }
    std::vector<std::vector<TaskEngine>> engines;
    for (const ListPlan::ProgramFacts& facts : plan_.programs()) {
      std::vector<TaskEngine> of_tasks;
      for (uint32_t i = 0; i < facts.program->tasks.size(); ++i) {
        const uint32_t meeting = plan_.meeting(facts.first_node + i);
        of_tasks.push_back(meeting == ListPlan::kNone || !is_possible_[meeting] ? TaskEngine::kAsIs
                           : gain_ns_[meeting] > 0                              ? TaskEngine::kCopy
                                                                                : TaskEngine::kSm);
      }
      engines.push_back(std::move(of_tasks));
    }
    return engines;
  }

 private:
  /// Adds the gains of a program's calls, on the first rank that has the program.
  void weigh(uint32_t program) {
    const auto rank = std::ranges::find(result_.ranks, program, &SimRank::program);
    if (rank == result_.ranks.end()) {
      return;  // no rank has it
    }
    const Program& it = *ranks_.programs[program];
    const auto times = times_of(ranks_, result_, *rank);
    const ComputeTimes compute(it, times, contention_);
    std::vector<std::optional<EngineCosts>> costs;
    for (const OpSpec& spec : it.specs.all()) {
      costs.push_back(engine_costs(it, spec, model_));
    }
    for (uint32_t i = 0; i < it.tasks.size(); ++i) {
      const uint32_t meeting = plan_.meeting(plan_.programs()[program].first_node + i);
      const auto& its_costs = costs[it.tasks[i].spec.index()];
      if (meeting != ListPlan::kNone && its_costs) {
        is_possible_[meeting] = true;
        gain_ns_[meeting] += gain_ns(*its_costs, compute.beside(times[i], its_costs->sms),
                                     times[i].end_ns - times[i].start_ns);
      }
    }
  }

  double gain_ns(const EngineCosts& costs, const ComputeTimes::Beside& beside, int64_t ns) const {
    const bool is_waited_for = longer_ == LongerCopies::kEverywhere || beside.ns < ns;
    const int64_t longer_ns = is_waited_for ? costs.copy_ns - costs.sm_ns : 0;
    return beside.lost_ns - static_cast<double>(costs.sum_ns + longer_ns);
  }

  const RankPrograms& ranks_;
  const SimResult& result_;
  const CostModel& model_;
  LongerCopies longer_;
  ContentionTable contention_;
  RankCalls calls_;
  ListPlan plan_;
  std::vector<double> gain_ns_;  // by meeting: sum over all of its ends
  std::vector<bool> is_possible_;
};

}  // namespace

std::vector<std::vector<TaskEngine>> engine_choice(const RankPrograms& ranks,
                                                   const SimResult& result, const CostModel& model,
                                                   LongerCopies longer) {
  return EngineChooser(ranks, result, model, longer).run();
}

}  // namespace braid
