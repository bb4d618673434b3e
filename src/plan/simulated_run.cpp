#include "plan/simulated_run.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/parallel_for.h"
#include "config/validate.h"
#include "model/model_spec.h"
#include "plan/fold_ranks.h"
#include "plan/memory_needs.h"
#include "plan/rank_programs.h"
#include "sim/step_clock.h"

namespace braid {
namespace {

/// The first rank of each place in the tensor, context and pipeline dimensions.
std::vector<int> first_ranks(const Mesh& mesh) {
  std::vector<int> ranks;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    if (mesh.position(rank).data == 0) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

/// If the run file names no costs, tasks are ordered by the costs of the simulation.
RunPlan plan_first_ranks(const RunSpec& run, const CostModel& simulated, PlannedRanks planned) {
  const CostModel* const model =
      run.is_scheduled && run.cost_model == nullptr ? &simulated : nullptr;
  if (planned == PlannedRanks::kOnePerStage) {
    return plan_run(
        run,
        {.one_rank_per_stage = true, .stages_lead = true, .cost_model = model, .verify = false});
  }
  const bool is_search = planned == PlannedRanks::kEveryPlaceQuickly;
  PlanOptions options{.ranks = first_ranks(run.mesh),
                      .cost_model = model,
                      .verify = !is_search,
                      .num_threads = is_search ? 1 : 0};
  if (planned != PlannedRanks::kEveryPlaceInFull) {
    FoldedRanks folded = fold_ranks(run, options.ranks, simulated, options.num_threads);
    options.ranks = std::move(folded.planned);
    options.stand_ins = std::move(folded.stand_ins);
    options.for_simulation = !is_search;
  }
  return plan_run(run, options);
}

double as_double(int64_t value) {
  return static_cast<double>(value);
}

/// Adds the times of one rank, weighted by `share`.
void add_times(const SimulatedRank& rank, double share, SimulatedMeans& means) {
  const RankTimes& times = rank.times;
  means.compute_ns += share * as_double(times.compute_ns);
  means.copy_ns += share * as_double(times.copy_ns);
  means.all_communication_ns += share * as_double(times.communication.total_ns);
  means.all_exposed_ns += share * as_double(times.communication.exposed_ns);
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    means.communication_ns[kind] += share * as_double(times.by_group[kind].total_ns);
    means.exposed_ns[kind] += share * as_double(times.by_group[kind].exposed_ns);
    means.idle_before_ns[kind] += share * as_double(rank.idle.before_communication_ns[kind]);
  }
  means.warmup_ns += share * as_double(rank.idle.warmup_ns);
  means.steady_ns += share * as_double(rank.idle.steady_ns);
  means.cooldown_ns += share * as_double(rank.idle.cooldown_ns);
}

}  // namespace

RunConfig scaled_to_ranks(RunConfig config, int64_t num_ranks) {
  ParallelConfig& parallel = config.parallel;
  const int64_t model_ranks = parallel.tensor * parallel.context * parallel.pipeline;
  if (num_ranks < model_ranks || num_ranks % model_ranks != 0) {
    const int64_t below = num_ranks / model_ranks * model_ranks;
    throw_config_error(
        "--ranks {} is not a multiple of tensor {} x context {} x pipeline {} = {}; the nearest {} "
        "{}",
        num_ranks, parallel.tensor, parallel.context, parallel.pipeline, model_ranks,
        below > 0 ? "are" : "is",
        below > 0 ? fmt::format("{} and {}", below, below + model_ranks)
                  : fmt::format("{}", model_ranks));
  }
  const int64_t microbatches = num_microbatches(config);
  parallel.ranks = num_ranks;
  parallel.data = num_ranks / model_ranks;
  config.train.global_batch = microbatch_sequences(config) * microbatches * parallel.data;
  validate(config);
  return resolved(std::move(config));
}

SimulatedRun::SimulatedRun(const RunSpec& run, const CostModel& model, const SimOptions& options,
                           PlannedRanks planned)
    : model_(model),
      options_(options),
      plan_(plan_first_ranks(run, model, planned)),
      programs_(std::make_shared<const MatchedPrograms>(braid::rank_programs(plan_), model)) {
  run_step();
}

void SimulatedRun::run_step() {
  result_ = {};  // its memory
  ClockedResult clocked = simulate_at_clock(*programs_, model_, options_, routed_load_);
  result_ = std::move(clocked.result);
  rank_clock_ = std::move(clocked.rank_clock);
  ranks_.clear();
  means_ = {};
  analyze();
}

RankPrograms SimulatedRun::rank_programs() const {
  return programs_->ranks();
}

void SimulatedRun::analyze() {
  constexpr size_t kFewRanks = 32;  // analyzed sooner than threads start
  const RankPrograms& programs = programs_->ranks();
  ranks_.resize(result_.ranks.size());
  parallel_for(ranks_.size(), ranks_.size() <= kFewRanks ? 1 : 0, [&](size_t i) {
    const SimRank& rank = result_.ranks[i];
    const RankTimeline timeline = simulated_timeline(programs, result_, rank.rank);
    ranks_[i] = {.rank = rank.rank,
                 .num_ranks = rank.num_ranks,
                 .pipeline = spec().mesh.position(rank.rank).pipeline,
                 .times = analyze_rank(timeline, result_.step_ns),
                 .idle = analyze_idle(timeline, result_.step_ns)};
  });
  for (const SimulatedRank& rank : ranks_) {
    add_times(rank, as_double(rank.num_ranks) / as_double(spec().mesh.num_ranks()), means_);
  }
}

int64_t SimulatedRun::step_ns_with_load(double load) const {
  return simulate_step(*programs_, model_, options_, load, {.rank_clock = rank_clock_}) +
         model_.step_overhead_ns();
}

int64_t SimulatedRun::step_ns_with(const PriceChanges& changes) const {
  if (changes == PriceChanges() && routed_load_ == 1.0) {
    return step_ns();
  }
  PriceChanges all = changes;
  all.rank_clock = rank_clock_;
  if (all.rank_compute.empty() && all.node_network.empty()) {
    return simulate_step(*programs_, model_, options_, 1.0, all) + model_.step_overhead_ns();
  }
  const RankPrograms programs = split_by_speed(rank_programs(), all.rank_compute);
  return simulate(programs, model_, options_, 1.0, all).step_ns + model_.step_overhead_ns();
}

std::vector<PathTask> SimulatedRun::critical_path() const {
  return braid::critical_path(*programs_, model_, result_, routed_load_,
                              {.rank_clock = rank_clock_});
}

void SimulatedRun::set_routed_load(double load) {
  routed_load_ = load;
  run_step();
}

double SimulatedRun::tokens_per_s() const {
  return as_double(spec().tokens_per_step()) / (as_double(std::max<int64_t>(step_ns(), 1)) * 1e-9);
}

double SimulatedRun::flops_per_s_per_rank() const {
  return tokens_per_s() * train_flops_per_token(spec().model, spec().config.train.sequence) /
         spec().mesh.num_ranks();
}

double SimulatedRun::mfu() const {
  return flops_per_s_per_rank() / model_.cluster().device.peak_flops_per_s(spec().dtype);
}

const SimulatedRank& SimulatedRun::busiest() const {
  return *std::min_element(ranks_.begin(), ranks_.end(),
                           [](const SimulatedRank& a, const SimulatedRank& b) {
                             return a.times.bubble_ns < b.times.bubble_ns;
                           });
}

std::vector<StageMemory> SimulatedRun::memory_by_stage() const {
  std::vector<StageMemory> stages(static_cast<size_t>(spec().mesh.sizes().pipeline));
  for (const RankPlan& rank : plan_.ranks) {
    const int number = rank.programs[kTrainProgram].rank;
    StageMemory& stage = stages[static_cast<size_t>(spec().mesh.position(number).pipeline)];
    const int64_t needed =
        rank_bytes(model_.cluster().device, rank, spec().config.runtime.repeatable);
    if (needed > stage.needed_bytes) {
      stage = {.rank = number, .needed_bytes = needed, .peak_bytes = rank.memory.peak_bytes()};
    }
  }
  return stages;
}

RankPlan SimulatedRun::plan_with_buffers(int rank) const {
  const RankPlan& plan = plan_.ranks[programs_->ranks().program_of[static_cast<size_t>(rank)]];
  if (!plan.no_buffers) {
    return plan;
  }
  return std::move(plan_run(spec(), {.ranks = {plan.programs[kTrainProgram].rank}}).ranks[0]);
}

Timeline SimulatedRun::timeline(std::span<const int> ranks) const {
  const RankPrograms& programs = programs_->ranks();
  Timeline timeline{.source = "sim", .ranks = {}};
  for (const int rank : ranks) {
    if (rank < 0 || rank >= spec().mesh.num_ranks()) {
      throw_config_error("--trace-ranks {}: the ranks are 0 to {}", rank,
                         spec().mesh.num_ranks() - 1);
    }
    timeline.ranks.push_back(simulated_timeline(programs, result_, rank));
  }
  return timeline;
}

}  // namespace braid
