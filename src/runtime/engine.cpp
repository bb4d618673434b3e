#include "runtime/engine.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "backends/run_ranks.h"
#include "base/errors.h"
#include "base/text.h"
#include "comm/tcp/socket_transport.h"
#include "model/mtp.h"
#include "ops/expert_exchange.h"
#include "ops/optimizer.h"
#include "plan/more_room.h"
#include "plan/rank_programs.h"
#include "runtime/batch_inputs.h"
#include "trace/peer_waits.h"
#include "trace/rank_clocks.h"
#include "trace/timeline_bytes.h"

namespace braid {

int threads_per_rank(int64_t configured, int64_t num_ranks) {
  const auto cores = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  return static_cast<int>(configured > 0 ? configured : std::max<int64_t>(1, cores / num_ranks));
}

Engine::Engine(RunPlan plan, const EngineOptions& options)
    : plan_(std::move(plan)),
      state_map_(make_state_map(plan_)),
      source_(options.device.backend->name),
      processes_(options.processes != nullptr && options.processes->size() > 1 ? options.processes
                                                                               : nullptr) {
  connect(options);
  num_threads_ = options.threads_per_rank * static_cast<int>(ranks_.size());
  make_executors(options);
  max_in_flight_ = std::max(1, options.steps_in_flight);
  for (const auto& executor : executors_) {
    max_in_flight_ = std::min(max_in_flight_, executor->max_steps_in_flight());
  }
  if (plan_.run.reruns_overflow && may_overflow(plan_.run)) {
    max_in_flight_ = 1;
  }
  for (size_t local = 0; local < executors_.size(); ++local) {
    const Program& program =
        plan_of_rank(plan_, static_cast<int>(ranks_[local])).programs[kTrainProgram];
    exchanges_.emplace_back(*executors_[local], program, max_in_flight_, plan_.run.routing);
    tallies_.emplace_back(program);
    routing_.emplace_back(plan_, static_cast<int>(ranks_[local]));
  }
  step_of_slot_.resize(static_cast<size_t>(max_in_flight_));
  routing_source_ = make_routing_source(plan_.run);
  if (plan_.run.routing == RoutingUse::kRecorded) {
    open_routing_record();
  }
}

/// The first process creates the file, and the others open it.
void Engine::open_routing_record() {
  const auto open = [&](PlacedFile::Mode mode) {
    routing_record_ = std::make_unique<RoutingRecord>(plan_.run.config.moe.record,
                                                      routing_shape(plan_.run), mode);
  };
  const bool leads = processes_ == nullptr || processes_->leads();
  if (leads) {
    open(PlacedFile::Mode::kCreate);
    routing_record_->write_header(1);
  }
  if (processes_ != nullptr) {
    processes_->barrier("file of moe.record");
  }
  if (!leads) {
    open(PlacedFile::Mode::kOpen);
  }
}

/// Connects the ranks of this process with each other or with those of the other processes.
void Engine::connect(const EngineOptions& options) {
  const int num_ranks = plan_.run.mesh.num_ranks();
  if (processes_ == nullptr) {
    ranks_.resize(static_cast<size_t>(num_ranks));
    std::iota(ranks_.begin(), ranks_.end(), size_t{0});
    transports_ = make_in_process_transports(
        {.num_ranks = num_ranks, .timeout_ns = options.timeout_ns, .links = options.links});
    rendezvous_ = make_in_process_rendezvous(num_ranks, options.timeout_ns);
    return;
  }
  check(processes_->size() == num_ranks, "{} processes of {} ranks", processes_->size(), num_ranks);
  ranks_ = {static_cast<size_t>(processes_->index())};
  if (options.device.backend->is_host) {
    transports_.push_back(
        make_socket_transport({.processes = processes_, .timeout_ns = options.timeout_ns}));
  }
}

/// Concurrently, because ranks on GPUs wait for each other.
void Engine::make_executors(const EngineOptions& options) {
  executors_.resize(ranks_.size());
  run_side_by_side(executors_.size(), [&](size_t local) {
    try {
      executors_[local] = make_executor(local, options);
      if (options.wrap_executor) {
        executors_[local] =
            options.wrap_executor(std::move(executors_[local]), static_cast<int>(ranks_[local]));
      }
    } catch (const AbortedError&) {
      throw;
    } catch (const std::exception& error) {
      if (processes_ == nullptr) {  // otherwise the code that ends the process tells the others
        rendezvous_[local]->abort(error.what());
      }
      throw;
    }
  });
}

std::unique_ptr<Executor> Engine::make_executor(size_t local, const EngineOptions& options) {
  const auto rank = static_cast<int>(ranks_[local]);
  const RankPlan& rank_plan = plan_of_rank(plan_, rank);
  const Device& device = options.device;
  RankOptions of_rank{.num_workers = options.threads_per_rank,
                      .cache_folder = options.cache_folder,
                      .poison_step_arena = options.poison_step_arena,
                      .eager = options.eager,
                      .sync_each_task = options.sync_each_task,
                      .repeatable = options.repeatable,
                      .nccl_windows = options.nccl_windows,
                      .shares_device = device.ranks_per_gpu > 1,
                      .timeout_ns = options.timeout_ns,
                      .stuck_timeout_ns = options.stuck_timeout_ns};
  if (device.backend->is_host) {
    of_rank.transport = transports_[local].get();
  } else {
    of_rank.device = device.gpu_of(ranks_[local]).device;
    of_rank.rendezvous = processes_ != nullptr ? processes_ : rendezvous_[local].get();
  }
  return options.make_executor
             ? options.make_executor(rank_plan.programs, rank_plan.memory, of_rank, rank)
             : device.backend->make_executor(rank_plan.programs, rank_plan.memory, of_rank);
}

/// Steps in flight use the memory of the exchanges, and may end only because another rank fails.
Engine::~Engine() {
  for (; steps_in_flight() > 0; ++num_finished_) {
    try {
      wait_for_ranks(executors());
    } catch (const std::exception&) {  // the first error has been reported
    }
  }
}

int64_t Engine::allocated_bytes(int rank) const {
  const Executor* const executor = executors_by_rank().at(static_cast<size_t>(rank));
  check(executor != nullptr, "rank {} is in another process", rank);
  return executor->allocated_bytes();
}

std::vector<std::string> Engine::notes() const {
  std::set<std::string> notes;
  for (const auto& executor : executors_) {
    for (std::string& note : executor->notes()) {
      notes.insert(std::move(note));
    }
  }
  return {notes.begin(), notes.end()};
}

std::vector<Executor*> Engine::executors() const {
  std::vector<Executor*> executors;
  for (const auto& executor : executors_) {
    executors.push_back(executor.get());
  }
  return executors;
}

/// Null for ranks of other processes.
std::vector<Executor*> Engine::executors_by_rank() const {
  std::vector<Executor*> executors(static_cast<size_t>(plan_.run.mesh.num_ranks()), nullptr);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    executors[ranks_[i]] = executors_[i].get();
  }
  return executors;
}

void Engine::begin_step(const StepBatch& batch, const OptimizerConfig& optimizer,
                        double learning_rate, int64_t step) {
  check(steps_in_flight() < max_in_flight_, "step {} begins with {} in flight", step,
        steps_in_flight());
  const auto slot = static_cast<size_t>(num_begun_ % max_in_flight_);
  const auto scalars = adamw_scalars(learning_rate, optimizer.beta1, optimizer.beta2, step);
  const float loss_scale = loss_scale_of(batch);
  const ModelSpec& model = plan_.run.model;
  std::vector<float> mtp_scales;
  for (int64_t depth = 1; depth <= model.mtp_depth; ++depth) {
    mtp_scales.push_back(static_cast<float>(mtp_weight(model)) * loss_scale_of(batch, depth));
  }
  for (size_t local = 0; local < executors_.size(); ++local) {
    const StepExchange::Values& values = exchanges_[local].slot(slot);
    BatchInputs(plan_.run, static_cast<int>(ranks_[local]), batch).fill(values);
    std::ranges::fill(values.loss_scale, loss_scale);
    std::copy_n(mtp_scales.begin(), values.mtp_loss_scales.size(), values.mtp_loss_scales.begin());
    const size_t num_scalars = values.optimizer_scalars.size();
    check(num_scalars <= scalars.size(), "the optimizer takes {} numbers", num_scalars);
    std::copy_n(scalars.begin(), num_scalars, values.optimizer_scalars.begin());
  }
  begin_routing(slot, step);
  launch_slot(slot);
  ++num_begun_;
}

/// Gives routers their choices, or begins to record those of the routers.
void Engine::begin_routing(size_t slot, int64_t step) {
  if (first_step_ == 0) {
    first_step_ = step;
    if (routing_record_ && ranks_.front() == 0) {
      routing_record_->write_header(step);
    }
  }
  step_of_slot_[slot] = step;
  for (size_t local = 0; local < exchanges_.size() && routing_source_; ++local) {
    routing_[local].fill(*routing_source_, step, exchanges_[local].slot(slot).routing);
  }
}

void Engine::record_routing(size_t slot) const {
  const int64_t index = step_of_slot_[slot] - first_step_;
  if (!routing_record_ || index >= plan_.run.config.moe.record_steps) {
    return;
  }
  for (size_t local = 0; local < exchanges_.size(); ++local) {
    routing_[local].record(*routing_record_, index, exchanges_[local].slot(slot).routing);
  }
}

/// Launches the step with the inputs of the slot.
void Engine::launch_slot(size_t slot) {
  for (StepExchange& exchange : exchanges_) {
    if (tracing_) {
      exchange.write_inputs(slot);
    } else {
      exchange.enqueue_inputs(slot);
    }
  }
  launch_ranks(executors(), kTrainProgram);
  if (!tracing_) {
    exchanges_.front().enqueue_results(slot);
    std::ranges::for_each(exchanges_, [&](StepExchange& it) { it.enqueue_own_results(slot); });
  }
}

/// Waits for the step, whose results are then in the slot.
void Engine::wait_for_slot(size_t slot) {
  wait_for_ranks(executors());
  if (tracing_) {
    exchanges_.front().read_results(slot);
    std::ranges::for_each(exchanges_, [&](StepExchange& it) { it.read_own_results(slot); });
  }
}

StepResult Engine::finish_step() {
  check(steps_in_flight() > 0, "no step has begun");
  const auto slot = static_cast<size_t>(num_finished_++ % max_in_flight_);
  wait_for_slot(slot);
  StepResult result = result_of(slot);
  int64_t reruns = 0;
  for (; plan_.run.reruns_overflow && result.skipped && lacked_room(slot); ++reruns) {
    check(make_more_room(), "rows of experts lack room where there is room for all");
    launch_slot(slot);
    wait_for_slot(slot);
    result = result_of(slot);
  }
  result.reruns = reruns;
  record_routing(slot);
  return result;
}

StepResult Engine::result_of(size_t slot) const {
  const StepExchange::Values& values = exchanges_.front().slot(slot);
  StepResult result;
  const auto sum_of = [&](int64_t row) {
    const auto microbatches = static_cast<size_t>(plan_.run.num_microbatches);
    double sum = 0;
    for (const float loss :
         values.losses.subspan(static_cast<size_t>(row) * microbatches, microbatches)) {
      sum += loss;
    }
    return sum;
  };
  const ModelSpec& model = plan_.run.model;
  result.loss = sum_of(0);
  for (int64_t depth = 1; depth <= model.mtp_depth; ++depth) {
    result.mtp_losses.push_back(sum_of(depth) / mtp_weight(model));
  }
  if (const double coefficient = plan_.run.config.train.z_loss; coefficient > 0) {
    result.z_loss = sum_of(1 + model.mtp_depth) / coefficient;
  }
  if (plan_.run.preference) {
    const auto microbatches = static_cast<size_t>(plan_.run.num_microbatches);
    result.preference = preference_of(values.losses.subspan(microbatches));
  }
  result.grad_norm = values.grad_norm.front();
  result.skipped = values.grad_scale.front() == 0.0f;
  result.lateness_ns = executors_.front()->lateness().count();
  for (const auto& executor : executors_) {  // the step ends with the last of them
    result.lateness_ns = std::min<int64_t>(result.lateness_ns, executor->lateness().count());
  }
  return result;
}

/// On any rank of the run. All processes ask at the same step, because whether it was skipped is
/// the same on all ranks.
bool Engine::lacked_room(size_t slot) const {
  if (!may_overflow(plan_.run)) {
    return false;
  }
  StepTallies tallies;
  for (size_t local = 0; local < exchanges_.size(); ++local) {
    tallies_[local].read(exchanges_[local].slot(slot), tallies);
  }
  const bool own = std::ranges::any_of(tallies.tallies, [](const Tally& tally) {
    return tally.place.kind == TallyKind::kRowRoom &&
           tally.values[RoomTally::kMost] > tally.values[RoomTally::kRoom];
  });
  if (processes_ == nullptr) {
    return own;
  }
  const std::vector<std::string> all = processes_->all_gather("rows without room", own ? "1" : "0");
  return std::ranges::find(all, "1") != all.end();
}

/// Replaces the programs of all ranks by some with more room for rows of experts. False if they
/// have room for all.
bool Engine::make_more_room() {
  const std::optional<RunSpec> larger = with_more_room(plan_.run);
  if (!larger) {
    return false;
  }
  replicas_.reset();
  plan_ = plan_again(plan_, *larger);
  // Concurrently, as in make_executors.
  run_side_by_side(executors_.size(), [&](size_t local) {
    const RankPlan& rank = plan_of_rank(plan_, static_cast<int>(ranks_[local]));
    try {
      executors_[local]->replace_programs(rank.programs, rank.memory);
    } catch (const AbortedError&) {
      throw;
    } catch (const DeviceError& error) {
      if (processes_ == nullptr && !rendezvous_.empty()) {
        rendezvous_[local]->abort(error.what());
      }
      throw_device_error(
          "rows of experts need {}, and rank {} then {} of memory: {}; make microbatches smaller, "
          "or set moe.on_overflow = \"drop\"",
          describe_room(plan_.run), ranks_[local], format_bytes(rank.memory.peak_bytes()),
          error.what());
    }
  });
  if (processes_ != nullptr) {
    processes_->barrier("more room for rows of experts");  // tasks wait for less time
  }
  return true;
}

StepTallies Engine::tallies() const {
  check(num_finished_ > 0, "no step has ended");
  const auto slot = static_cast<size_t>((num_finished_ - 1) % max_in_flight_);
  StepTallies tallies;
  for (size_t local = 0; local < exchanges_.size(); ++local) {
    tallies_[local].read(exchanges_[local].slot(slot), tallies);
  }
  return tallies;
}

StepResult Engine::train_step(const StepBatch& batch, const OptimizerConfig& optimizer,
                              double learning_rate, int64_t step) {
  check(steps_in_flight() == 0, "step {} is to run alone, with {} in flight", step,
        steps_in_flight());
  begin_step(batch, optimizer, learning_rate, step);
  return finish_step();
}

void Engine::check_last_step() {
  check(steps_in_flight() == 0, "the last step is to run again with {} in flight",
        steps_in_flight());
  for (Executor* const executor : executors()) {
    executor->set_finite_checks(true);
  }
  run_ranks(executors(), kTrainProgram);
  for (Executor* const executor : executors()) {
    executor->set_finite_checks(false);
  }
}

ReplicaDifference Engine::replica_difference() {
  check(steps_in_flight() == 0, "replicas are compared with {} steps in flight", steps_in_flight());
  if (replicas_ == nullptr) {
    replicas_ = std::make_unique<ReplicaCheck>(plan_, executors_by_rank(), processes_);
  }
  return replicas_->difference();
}

Evaluation Engine::evaluation() const {
  check(steps_in_flight() == 0, "an evaluation is to run with {} steps in flight",
        steps_in_flight());
  return {plan_, ranks_, executors(), processes_};
}

EvaluationResult Engine::evaluate(const StepBatch& batch) {
  EvaluationResult result = evaluation().evaluate(batch);
  while (std::isnan(result.loss) && plan_.run.reruns_overflow && make_more_room()) {
    result = evaluation().evaluate(batch);
  }
  return result;
}

std::vector<float> Engine::log_probabilities(const StepBatch& batch) {
  check(plan_.run.preference.has_value(), "the run has no sequences with a loss of their own");
  std::vector<float> found = evaluation().log_probabilities(batch);
  const auto is_nan = [](float value) { return std::isnan(value); };
  while (std::ranges::any_of(found, is_nan) && plan_.run.reruns_overflow && make_more_room()) {
    found = evaluation().log_probabilities(batch);
  }
  return found;
}

DeviceState Engine::state() const {
  check(processes_ == nullptr, "the state of all ranks lies in several processes");
  return {state_map_, executors()};
}

DeviceShards Engine::state_shards() const {
  return {state_map_, plan_.layout, plan_.run.model, executors_by_rank()};
}

void Engine::write_state(const StateSource& source) {
  WorkerPool workers(num_threads_);
  braid::write_state(source, plan_.layout, state_map_, executors_by_rank(), workers);
}

void Engine::set_tracing(bool enabled) {
  check(steps_in_flight() == 0, "tracing is switched with {} steps in flight", steps_in_flight());
  tracing_ = enabled;
  // Ranks whose launches wait for each other capture their steps again together.
  const bool together = std::ranges::any_of(
      executors_, [](const auto& executor) { return executor->launch_may_wait(); });
  if (together) {
    run_side_by_side(executors_.size(),
                     [&](size_t rank) { executors_[rank]->set_tracing(enabled); });
    return;
  }
  for (const auto& executor : executors_) {
    executor->set_tracing(enabled);
  }
}

/// The timelines of all ranks with one process; with several, only the first one gets those of all.
std::vector<RankTimeline> Engine::collect_timelines() const {
  std::vector<RankTimeline> timelines;
  for (const auto& executor : executors_) {
    timelines.push_back(executor->timeline());
  }
  if (processes_ != nullptr) {
    const std::vector<std::string> all =
        processes_->gather("timelines", timeline_bytes(timelines.front()));
    timelines.clear();
    for (const std::string& bytes : all) {
      timelines.push_back(timeline_of_bytes(bytes));
    }
  }
  return timelines;
}

Timeline Engine::timeline() const {
  Timeline timeline{.source = source_, .ranks = {}};
  timeline.ranks = collect_timelines();
  if (timeline.ranks.empty()) {
    return timeline;
  }
  const std::string method = timeline.ranks.empty() ? "" : timeline.ranks.front().method;
  if (!method.empty()) {
    timeline.source += ", " + method;
  }
  put_on_one_clock(timeline);
  find_peer_waits(timeline);
  return timeline;
}

}  // namespace braid
