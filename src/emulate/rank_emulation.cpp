#include "emulate/rank_emulation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "base/worker_pool.h"
#include "ops/optimizer.h"
#include "ops/router.h"
#include "parallel/parameter_layout.h"
#include "plan/emulated_peers.h"
#include "plan/rank_programs.h"
#include "runtime/rank_routing.h"
#include "runtime/step_exchange.h"
#include "state/initial_weights.h"
#include "state/state_map.h"
#include "state/state_transfer.h"
#include "trace/exposed.h"

namespace braid {
namespace {

std::unique_ptr<Executor> make_executor(const RankPlan& rank, const MemoryPlan& memory,
                                        bool repeatable, const EmulatedPeers& peers,
                                        const RankEmulationOptions& options) {
  const Device& device = options.device;
  return device.backend->make_executor(rank.programs, memory,
                                       {.device = device.gpu ? device.gpu->device : 0,
                                        .num_workers = options.threads,
                                        .cache_folder = options.cache_folder,
                                        .repeatable = repeatable,
                                        .emulated_peers = peers});
}

std::optional<int64_t> free_bytes(const Device& device) {
  return device.gpu ? std::optional(device.backend->free_bytes(device.gpu->device)) : std::nullopt;
}

void check_fits(const RankPlan& rank, const MemoryPlan& memory, int number,
                std::optional<int64_t> free) {
  if (free && rank.memory.peak_bytes() > *free) {
    throw_config_error(
        "rank {} needs {} and scratch for its kernels, but this GPU has {} free; braid plan "
        "--device-memory says which settings fit",
        number, format_bytes(rank.memory.peak_bytes()), format_bytes(*free));
  }
  if (free && memory.peak_bytes() > *free) {
    throw_config_error(
        "rank {} needs {}, of which {} hold the data of other ranks, but this GPU has {} free; "
        "with --copies it needs {}",
        number, format_bytes(memory.peak_bytes()),
        format_bytes(memory.peak_bytes() - rank.memory.peak_bytes()), format_bytes(*free),
        format_bytes(rank.memory.peak_bytes()));
  }
}

/// Fills random tokens, and the other inputs of a step.
void fill_inputs(const StepExchange::Values& values, const RunSpec& run, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(run.model.vocabulary) - 1);
  std::ranges::generate(values.tokens, [&] { return token(random); });
  std::ranges::generate(values.labels, [&] { return token(random); });
  std::ranges::fill(values.document_starts, 0);  // a sequence is one document
  std::ranges::fill(values.exchanged_document_starts, 0);
  std::ranges::fill(values.loss_scale, 1.0f / static_cast<float>(run.tokens_per_step()));
  const OptimizerConfig& optimizer = run.config.optimizer;
  const auto scalars = adamw_scalars(optimizer.learning_rate, optimizer.beta1, optimizer.beta2, 1);
  const size_t num_scalars = values.optimizer_scalars.size();
  check(num_scalars <= scalars.size(), "the optimizer takes {} numbers", num_scalars);
  std::copy_n(scalars.begin(), num_scalars, values.optimizer_scalars.begin());
}

/// The source of given choices, for the rank as the busiest one. Null if there is none.
std::unique_ptr<RoutingSource> routing_of(const RunPlan& plan, int rank) {
  const ExpertShard shard = expert_shard(plan.run.mesh, rank, plan.run.parallel);
  return make_routing_source(plan.run, FavouredExperts{.index = shard.index, .runs = shard.size});
}

int64_t routing_elems(const Program& program) {
  const auto found = std::ranges::find(program.buffers, kRoutingBuffer, &Buffer::name);
  return found == program.buffers.end() ? 0 : found->num_elems();
}

/// Writes the rank's share of fresh weights; those of other ranks are not generated.
void write_weights(Executor& executor, const RunPlan& plan, int rank, int threads) {
  const RunSpec& run = plan.run;
  std::vector<Executor*> by_rank(static_cast<size_t>(run.mesh.num_ranks()), nullptr);
  by_rank[static_cast<size_t>(rank)] = &executor;
  WorkerPool workers(threads);
  write_state(InitialWeights(plan.layout, run.model, static_cast<uint64_t>(run.config.train.seed)),
              plan.layout, make_state_map(plan), by_rank, workers);
}

/// Runs steps back to back, with as many in flight as the executor supports, and returns their end
/// times.
std::vector<std::chrono::steady_clock::time_point> run_steps(Executor& executor,
                                                             StepExchange& exchange,
                                                             int64_t num_slots, int64_t count) {
  std::vector<std::chrono::steady_clock::time_point> ends;
  for (int64_t begun = 0; std::ssize(ends) < count;) {
    for (; begun < count && begun - std::ssize(ends) < num_slots; ++begun) {
      const auto slot = static_cast<size_t>(begun % num_slots);
      exchange.enqueue_inputs(slot);
      executor.launch(kTrainProgram);
      exchange.enqueue_results(slot);
    }
    executor.wait();
    ends.push_back(std::chrono::steady_clock::now() - executor.lateness());
  }
  return ends;
}

std::vector<int64_t> time_steps(Executor& executor, StepExchange& exchange, int64_t num_slots,
                                const RankEmulationOptions& options) {
  const int64_t untimed = 1 + options.warmup_steps;
  const auto ends = run_steps(executor, exchange, num_slots, untimed + options.steps);
  std::vector<int64_t> step_ns;
  for (auto i = static_cast<size_t>(untimed); i < ends.size(); ++i) {
    step_ns.push_back(
        std::chrono::duration_cast<std::chrono::nanoseconds>(ends[i] - ends[i - 1]).count());
  }
  return step_ns;
}

/// Products of infinities and NaN draw less power than others, and so take less time.
bool are_finite(const StepExchange& exchange, int64_t num_slots) {
  const auto is_finite = [](float value) { return std::isfinite(value); };
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    const StepExchange::Values& values = exchange.slot(static_cast<size_t>(slot));
    if (!std::ranges::all_of(values.losses, is_finite) ||
        !std::ranges::all_of(values.grad_norm, is_finite)) {
      return false;
    }
  }
  return true;
}

Timeline trace_step(Executor& executor, StepExchange& exchange, std::string_view backend) {
  executor.set_tracing(true);
  exchange.write_inputs(0);
  executor.run(kTrainProgram);
  Timeline timeline{.source = std::string(backend), .ranks = {executor.timeline()}};
  const std::string& method = timeline.ranks.front().method;
  timeline.source += method.empty() ? "" : ", " + method;
  executor.set_tracing(false);
  return timeline;
}

}  // namespace

int64_t RankEmulation::median_step_ns() const {
  check(!step_ns.empty(), "no step was timed");
  std::vector<int64_t> sorted = step_ns;
  std::ranges::sort(sorted);
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

std::optional<EmulatedLoad> emulated_load(const RunPlan& plan, int rank) {
  const int64_t elems = routing_elems(plan_of_rank(plan, rank).programs[kTrainProgram]);
  const std::unique_ptr<RoutingSource> source = routing_of(plan, rank);
  if (source == nullptr || elems == 0) {
    return std::nullopt;
  }
  const RankRouting routing(plan, rank);
  std::vector<int32_t> experts(static_cast<size_t>(elems));
  routing.fill(*source, 1, experts);
  const std::vector<double> loads = routing.loads(experts);
  const EmulatedLoad load{
      .mean = std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size()),
      .worst = *std::ranges::max_element(loads)};
  if (plan.run.model.router.expert_capacity > 0) {
    throw_config_error(
        "moe.expert_capacity = {}: emulated ranks send all rows of the experts that moe.force_skew "
        "or moe.replay chooses; set moe.expert_capacity = 0, or remove that key",
        plan.run.model.router.expert_capacity);
  }
  const double capacity = plan.run.config.moe.capacity;
  if (capacity > 0 && load.worst > capacity) {
    throw_config_error(
        "moe.capacity = {}: up to {:.3f} times the rows of equal loads come to rank {}; set "
        "moe.capacity = {:.3f}",
        capacity, load.worst, rank, std::ceil(load.worst * 1e3) / 1e3);
  }
  return load;
}

RankEmulation emulate_rank(const RunPlan& plan, int rank, const EmulatedPeers& peers,
                           const RankEmulationOptions& options) {
  check(options.steps > 0 && options.warmup_steps >= 0, "{} steps behind {}", options.steps,
        options.warmup_steps);
  const RunConfig& config = plan.run.config;
  const RankPlan& planned = plan_of_rank(plan, rank);
  const std::optional<int64_t> free_before = free_bytes(options.device);
  const MemoryPlan memory = memory_with(peers, planned);
  check_fits(planned, memory, rank, free_before);
  const std::unique_ptr<Executor> executor =
      make_executor(planned, memory, config.runtime.repeatable, peers, options);
  const int64_t num_slots = executor->max_steps_in_flight();
  StepExchange exchange(*executor, planned.programs[kTrainProgram], static_cast<int>(num_slots),
                        plan.run.routing);
  const std::unique_ptr<RoutingSource> source = routing_of(plan, rank);
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    const StepExchange::Values& values = exchange.slot(static_cast<size_t>(slot));
    fill_inputs(values, plan.run, static_cast<uint32_t>(config.data.seed + slot));
    if (source) {
      RankRouting(plan, rank).fill(*source, 1, values.routing);
    }
  }
  write_weights(*executor, plan, rank, options.threads);
  RankEmulation result;
  result.load = emulated_load(plan, rank);
  result.step_ns = time_steps(*executor, exchange, num_slots, options);
  const std::optional<int64_t> free_after = free_bytes(options.device);
  result.timeline = trace_step(*executor, exchange, options.device.backend->name);
  result.planned_bytes = planned.memory.peak_bytes();
  result.lasting_bytes = memory.peak_bytes() - result.planned_bytes;
  result.allocated_bytes = executor->allocated_bytes();
  result.notes = executor->notes();
  if (!are_finite(exchange, num_slots)) {
    result.notes.emplace_back(
        "loss or gradients are not finite with the made-up data of other ranks: kernels may be "
        "faster than with real numbers");
  }
  if (free_before && free_after) {
    result.driver_bytes = *free_before - *free_after;
  }
  return result;
}

}  // namespace braid
