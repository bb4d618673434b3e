#include "sim/simulate.h"

#include <bit>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "parallel/rank_calls.h"
#include "parallel/rendezvous_run.h"
#include "sim/sim_plan.h"
#include "sim/sim_run.h"

namespace braid {
namespace {

/// The node of each rank and its larger units of the network, numbered in order of first
/// occurrence, and how fast the nodes are: groups with equal placement have equal costs.
GroupColor place_on_nodes(const Cluster& cluster, const PriceChanges& changes) {
  return [&](std::span<const int> ranks) {
    std::vector<uint32_t> color;
    for (size_t level = 0; level < num_unit_levels(cluster); ++level) {
      std::map<int64_t, uint32_t> numbers;
      for (const int rank : ranks) {
        const auto number = static_cast<uint32_t>(numbers.size());
        color.push_back(numbers.try_emplace(unit_of(cluster, rank, level), number).first->second);
      }
    }
    if (!changes.node_network.empty()) {
      for (const int rank : ranks) {
        const auto bits = std::bit_cast<uint64_t>(
            changes.node_network.at(static_cast<size_t>(rank / cluster.devices_per_node)));
        color.push_back(static_cast<uint32_t>(bits >> 32));
        color.push_back(static_cast<uint32_t>(bits));
      }
    }
    return color;
  };
}

RankCalls calls_of(const RankPrograms& ranks, const CostModel& model, const PriceChanges& changes) {
  check(ranks.num_ranks() <= model.cluster().num_devices, "{} ranks on the {} devices of {}",
        ranks.num_ranks(), model.cluster().num_devices, model.cluster().name);
  std::vector<std::string> faults;
  std::optional<RankCalls> calls =
      match_calls(ranks, faults, place_on_nodes(model.cluster(), changes));
  check(calls.has_value(), "the programs of {} ranks cannot be simulated: {}", ranks.num_ranks(),
        join(faults, "; "));
  return std::move(*calls);
}

SimResult empty_result(const RankCalls& calls, const SimPlan& plan) {
  SimResult result;
  result.alike = calls.ranks();
  for (size_t i = 0; i < calls.classes().size(); ++i) {
    result.ranks.push_back({.rank = result.alike.stand_ins[i],
                            .program = calls.classes()[i].program,
                            .first_time = plan.classes()[i].first_task});
  }
  for (const uint32_t kind : result.alike.kind_of) {
    ++result.ranks[kind].num_ranks;
  }
  return result;
}

void run_to_the_end(SimRun& run, const SimOptions& options, const RankCalls& calls,
                    SimResult& result) {
  if (!run.run(options, result)) {
    throw_internal_error("{}", find_deadlock(calls, RunOrder::kStreams).value());
  }
}

void check_needs_no_matching(const PriceChanges& changes) {
  check(changes.rank_compute.empty() && changes.node_network.empty(),
        "prices of single ranks or nodes need programs that are matched for them");
}

}  // namespace

MatchedPrograms::MatchedPrograms(RankPrograms ranks, const CostModel& model,
                                 const PriceChanges& changes)
    : ranks_(std::move(ranks)), calls_(calls_of(ranks_, model, changes)) {}

class Simulator::State {
 public:
  State(const RankPrograms& ranks, const CostModel& model, double routed_load,
        const PriceChanges& changes)
      : programs_(ranks, model, changes),
        plan_(programs_.calls(), model, routed_load, changes),
        run_(plan_),
        result_(empty_result(programs_.calls(), plan_)) {
    result_.times.resize(plan_.num_tasks());
  }

  const SimResult& run(const SimOptions& options) {
    for (SimRank& rank : result_.ranks) {
      rank.end_ns = 0;
      rank.compute_ns = 0;
    }
    run_to_the_end(run_, options, programs_.calls(), result_);
    return result_;
  }

 private:
  MatchedPrograms programs_;
  SimPlan plan_;
  SimRun run_;
  SimResult result_;
};

Simulator::Simulator(const RankPrograms& ranks, const CostModel& model, double routed_load,
                     const PriceChanges& changes)
    : state_(std::make_unique<State>(ranks, model, routed_load, changes)) {}
Simulator::Simulator(Simulator&&) noexcept = default;
Simulator& Simulator::operator=(Simulator&&) noexcept = default;
Simulator::~Simulator() = default;

const SimResult& Simulator::run(const SimOptions& options) {
  return state_->run(options);
}

SimResult simulate(const RankPrograms& ranks, const CostModel& model, const SimOptions& options,
                   double routed_load, const PriceChanges& changes) {
  return Simulator(ranks, model, routed_load, changes).run(options);
}

SimResult simulate(const MatchedPrograms& programs, const CostModel& model,
                   const SimOptions& options, double routed_load, const PriceChanges& changes) {
  check_needs_no_matching(changes);
  const SimPlan plan(programs.calls(), model, routed_load, changes);
  SimRun run(plan);
  SimResult result = empty_result(programs.calls(), plan);
  result.times.resize(plan.num_tasks());
  run_to_the_end(run, options, programs.calls(), result);
  return result;
}

int64_t simulate_step(const MatchedPrograms& programs, const CostModel& model,
                      const SimOptions& options, double routed_load, const PriceChanges& changes) {
  check_needs_no_matching(changes);
  const SimPlan plan(programs.calls(), model, routed_load, changes);
  SimRun run(plan);
  SimResult result = empty_result(programs.calls(), plan);
  run_to_the_end(run, options, programs.calls(), result);
  return result.step_ns;
}

RankPrograms split_by_speed(RankPrograms ranks, const std::vector<double>& rank_compute) {
  std::map<std::pair<uint32_t, double>, uint32_t> listed;
  std::vector<const Program*> programs;
  for (size_t rank = 0; rank < rank_compute.size(); ++rank) {
    uint32_t& program = ranks.program_of[rank];
    const auto [found, is_new] =
        listed.try_emplace({program, rank_compute[rank]}, static_cast<uint32_t>(programs.size()));
    if (is_new) {
      programs.push_back(ranks.programs[program]);
    }
    program = found->second;
  }
  if (!rank_compute.empty()) {
    ranks.programs = std::move(programs);
  }
  return ranks;
}

std::span<const TaskTimes> times_of(const RankPrograms& ranks, const SimResult& result,
                                    const SimRank& rank) {
  return std::span(result.times)
      .subspan(rank.first_time, ranks.programs[rank.program]->tasks.size());
}

RankTimeline simulated_timeline(const RankPrograms& ranks, const SimResult& result, int rank) {
  check(rank >= 0 && rank < ranks.num_ranks(), "rank {} of {}", rank, ranks.num_ranks());
  const SimRank& its_class = result.ranks[result.alike.kind_of[static_cast<size_t>(rank)]];
  RankTimeline timeline =
      task_timeline(*ranks.programs[its_class.program], times_of(ranks, result, its_class));
  timeline.rank = rank;
  timeline.method = "simulated";
  return timeline;
}

}  // namespace braid
