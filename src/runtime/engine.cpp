#include "runtime/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "backends/run_ranks.h"
#include "base/errors.h"
#include "base/text.h"
#include "comm/tcp/socket_transport.h"
#include "model/forward.h"
#include "model/mtp.h"
#include "ops/expert_exchange.h"
#include "ops/optimizer.h"
#include "ops/preference.h"
#include "plan/more_room.h"
#include "plan/rank_programs.h"
#include "trace/peer_waits.h"
#include "trace/rank_clocks.h"
#include "trace/timeline_bytes.h"

namespace braid {
namespace {

template <class T>
void write_values(Executor& executor, std::string_view buffer, int64_t first_elem,
                  std::span<const T> values) {
  executor.write(buffer, first_elem * static_cast<int64_t>(sizeof(T)), std::as_bytes(values));
}

template <class T>
std::vector<T> read_values(Executor& executor, std::string_view buffer, size_t count) {
  std::vector<T> values(count);
  executor.read(buffer, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

/// 1 / number of labels that are not ignored, over all ranks and microbatches; of those `depth` or
/// more behind the beginning of their sequence.
float loss_scale_of(const StepBatch& batch, int64_t depth = 0) {
  int64_t valid = 0;
  for (int64_t rank = batch.rank_begin(); rank < batch.rank_end(); ++rank) {
    for (int64_t microbatch = 0; microbatch < batch.shape().num_microbatches; ++microbatch) {
      valid += count_labels(batch.labels(rank, microbatch), batch.sequence_tokens(), depth);
    }
  }
  return 1.0f / static_cast<float>(std::max<int64_t>(1, valid));
}

/// Of figures (ops/preference.h) of microbatches or ranks, one after the other, whose sums are
/// those of the step.
PreferenceRecord preference_of(std::span<const float> figures) {
  std::array<double, kPreferenceFigures> sums{};
  for (size_t i = 0; i < figures.size(); ++i) {
    sums[i % sums.size()] += static_cast<double>(figures[i]);
  }
  return {.chosen_reward = sums[0],
          .rejected_reward = sums[1],
          .accuracy = sums[2],
          .chosen_logp = sums[3],
          .rejected_logp = sums[4]};
}

}  // namespace

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

void Engine::run_all(size_t program_index) {
  check(steps_in_flight() == 0, "program {} is to run with {} steps in flight", program_index,
        steps_in_flight());
  run_ranks(executors(), program_index);
}

bool Engine::has_buffer(size_t rank, size_t program_index, std::string_view name) const {
  return std::ranges::any_of(
      plan_of_rank(plan_, static_cast<int>(rank)).programs[program_index].buffers,
      [&](const Buffer& buffer) { return buffer.name == name; });
}

/// The positions of a rank's tokens in a sequence.
std::vector<int64_t> Engine::positions_of(size_t rank, const StepBatch& batch) const {
  return context_shard(plan_.run.mesh, static_cast<int>(rank), plan_.run.parallel)
      .position_list(batch.sequence_tokens());
}

/// The same after the exchange of heads for sequence.
std::vector<int64_t> Engine::exchanged_positions_of(size_t rank, const StepBatch& batch) const {
  return context_shard(plan_.run.mesh, static_cast<int>(rank), plan_.run.parallel)
      .outer_shard()
      .position_list(batch.sequence_tokens());
}

/// Ranks with the embedding get tokens, ranks with the loss get labels, those whose layers separate
/// documents get their starts.
void Engine::fill_inputs(size_t local, const StepBatch& batch,
                         const StepExchange::Values& values) const {
  const size_t rank = ranks_[local];
  const int data_rank = plan_.run.mesh.position(static_cast<int>(rank)).data;
  const std::vector<int64_t> positions = positions_of(rank, batch);
  const auto fill = [&](std::span<int32_t> to, const std::vector<int32_t>& from,
                        size_t microbatch) {
    const size_t rows = from.size();
    check(to.size() == rows * static_cast<size_t>(plan_.run.num_microbatches),
          "{} tokens of a microbatch for {} microbatches of {}", from.size(),
          plan_.run.num_microbatches, to.size());
    std::ranges::copy(from, to.subspan(microbatch * rows, rows).begin());
  };
  for (int64_t microbatch = 0; microbatch < plan_.run.num_microbatches; ++microbatch) {
    const auto index = static_cast<size_t>(microbatch);
    if (!values.tokens.empty()) {
      fill(values.tokens, batch.tokens_at(data_rank, microbatch, positions), index);
    }
    if (!values.labels.empty()) {
      fill(values.labels, batch.labels_at(data_rank, microbatch, positions), index);
    }
    if (!values.reference.empty()) {
      const std::vector<float> reference = reference_inputs(rank, batch, microbatch);
      std::ranges::copy(reference, values.reference.subspan(index * reference.size()).begin());
    }
    if (!values.document_starts.empty()) {
      fill(values.document_starts, batch.document_starts_at(data_rank, microbatch, positions),
           index);
    }
    if (!values.exchanged_document_starts.empty()) {
      fill(values.exchanged_document_starts,
           batch.document_starts_at(data_rank, microbatch, exchanged_positions_of(rank, batch)),
           index);
    }
  }
  if (!values.mtp_labels.empty()) {
    fill_mtp_inputs(local, batch, values);
  }
}

/// The input "reference" [B,2] of a microbatch (ops/preference.h).
std::vector<float> Engine::reference_inputs(size_t rank, const StepBatch& batch,
                                            int64_t microbatch) const {
  const int data_rank = plan_.run.mesh.position(static_cast<int>(rank)).data;
  const std::span<const int32_t> labels = batch.labels(data_rank, microbatch);
  const auto sequence = static_cast<size_t>(batch.sequence_tokens());
  std::vector<float> inputs;
  for (const float reference : batch.references(data_rank, microbatch)) {
    const auto of_sequence = labels.subspan(inputs.size() / kReferenceColumns * sequence, sequence);
    const int64_t answer =
        std::max<int64_t>(count_labels(of_sequence, batch.sequence_tokens(), 0), 1);
    inputs.push_back(reference);
    inputs.push_back(plan_.run.averages_answers() ? 1.0f / static_cast<float>(answer) : 1.0f);
  }
  return inputs;
}

/// Shifted tokens and labels of multi-token prediction.
void Engine::fill_mtp_inputs(size_t local, const StepBatch& batch,
                             const StepExchange::Values& values) const {
  const int data_rank = plan_.run.mesh.position(static_cast<int>(ranks_[local])).data;
  const std::vector<int64_t> positions = positions_of(ranks_[local], batch);
  auto tokens = values.mtp_tokens.begin();
  auto labels = values.mtp_labels.begin();
  for (int64_t depth = 1; depth <= plan_.run.model.mtp_depth; ++depth) {
    for (int64_t microbatch = 0; microbatch < plan_.run.num_microbatches; ++microbatch) {
      const auto shifted = [&](std::span<const int32_t> from, int32_t beyond) {
        return take_positions(shift_sequences(from, batch.sequence_tokens(), depth, beyond),
                              batch.sequence_tokens(), positions);
      };
      tokens = std::ranges::copy(shifted(batch.tokens(data_rank, microbatch), 0), tokens).out;
      labels = std::ranges::copy(shifted(batch.labels(data_rank, microbatch), -1), labels).out;
    }
  }
  check(labels == values.mtp_labels.end() && tokens == values.mtp_tokens.end(),
        "tokens of multi-token prediction: {} of {}", labels - values.mtp_labels.begin(),
        values.mtp_labels.size());
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
    fill_inputs(local, batch, values);
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
  for (Executor* const executor : executors()) {
    executor->set_finite_checks(true);
  }
  run_all(kTrainProgram);
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

/// The rank's tokens and labels of a microbatch.
void Engine::write_eval_inputs(size_t local, const StepBatch& batch, int64_t microbatch) {
  const size_t rank = ranks_[local];
  Executor& executor = *executors_[local];
  const int data_rank = plan_.run.mesh.position(static_cast<int>(rank)).data;
  const std::vector<int64_t> positions = positions_of(rank, batch);
  if (has_buffer(rank, kEvalProgram, "eval.tokens")) {
    write_values<int32_t>(executor, "eval.tokens", 0,
                          batch.tokens_at(data_rank, microbatch, positions));
  }
  const auto write_starts = [&](std::string_view name, const std::vector<int64_t>& at) {
    const std::string buffer = fmt::format("eval.{}", name);
    if (has_buffer(rank, kEvalProgram, buffer)) {
      write_values<int32_t>(executor, buffer, 0,
                            batch.document_starts_at(data_rank, microbatch, at));
    }
  };
  write_starts(kDocumentStarts, positions);
  write_starts(kExchangedDocumentStarts, exchanged_positions_of(rank, batch));
  if (has_buffer(rank, kEvalProgram, "eval.labels")) {
    write_values<int32_t>(executor, "eval.labels", 0,
                          batch.labels_at(data_rank, microbatch, positions));
  }
  if (has_buffer(rank, kEvalProgram, "eval.loss_scale")) {
    const std::array scale{loss_scale_of(batch)};
    write_values<float>(executor, "eval.loss_scale", 0, scale);
  }
  const std::string reference = fmt::format("eval.{}", kReferenceValue);
  if (has_buffer(rank, kEvalProgram, reference)) {
    write_values<float>(executor, reference, 0, reference_inputs(rank, batch, microbatch));
  }
}

EvaluationResult Engine::evaluate(const StepBatch& batch) {
  EvaluationResult result = evaluate_once(batch);
  while (std::isnan(result.loss) && plan_.run.reruns_overflow && make_more_room()) {
    result = evaluate_once(batch);
  }
  return result;
}

/// The forward of a microbatch.
void Engine::run_eval(const StepBatch& batch, int64_t microbatch) {
  for (size_t local = 0; local < executors_.size(); ++local) {
    write_eval_inputs(local, batch, microbatch);
  }
  run_all(kEvalProgram);
}

/// Reads what tensor ranks have in common from the first of them; zeros for those that have no
/// part.
void Engine::append_result(std::vector<float>& results, size_t local, std::string_view name,
                           int64_t elems) const {
  const size_t rank = ranks_[local];
  const bool counts = plan_.run.mesh.position(static_cast<int>(rank)).tensor == 0 &&
                      has_buffer(rank, kEvalProgram, name);
  const std::vector<float> values = counts ? read_values<float>(*executors_[local], name, elems)
                                           : std::vector<float>(static_cast<size_t>(elems), 0.0f);
  results.insert(results.end(), values.begin(), values.end());
}

EvaluationResult Engine::evaluate_once(const StepBatch& batch) {
  const bool pairs = plan_.run.preference.has_value();
  const size_t width = pairs ? 1 + kPreferenceFigures : 1;
  std::vector<float> own;  // [microbatches, ranks of this process, width]
  for (int64_t microbatch = 0; microbatch < plan_.run.num_microbatches; ++microbatch) {
    run_eval(batch, microbatch);
    for (size_t local = 0; local < executors_.size(); ++local) {
      append_result(own, local, "eval.loss", 1);
      if (pairs) {
        append_result(own, local, fmt::format("eval.{}", kPreferenceValue), kPreferenceFigures);
      }
    }
  }
  const std::vector<float> all = results_of_ranks(own, width);
  EvaluationResult result;
  std::vector<float> figures;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % width == 0) {
      result.loss += all[i];
    } else {
      figures.push_back(all[i]);
    }
  }
  if (pairs) {
    result.preference = preference_of(figures);
  }
  return result;
}

/// Of `own` [microbatches, ranks of this process, width]: the same of all ranks, in the order of
/// ranks, independent of the distribution to processes.
std::vector<float> Engine::results_of_ranks(const std::vector<float>& own, size_t width) const {
  if (processes_ == nullptr) {
    return own;
  }
  const auto bytes = std::as_bytes(std::span(own));
  const std::vector<std::string> given = processes_->all_gather(
      "results", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  std::vector<float> all(given.size() * own.size());
  for (size_t process = 0; process < given.size(); ++process) {
    check(given[process].size() == bytes.size(), "{} bytes of results", given[process].size());
    for (size_t at = 0; at < own.size(); at += width) {  // one rank for each process
      std::memcpy(&all[at * given.size() + process * width],
                  given[process].data() + at * sizeof(float), width * sizeof(float));
    }
  }
  return all;
}

std::vector<float> Engine::log_probabilities(const StepBatch& batch) {
  check(plan_.run.preference.has_value(), "the run has no sequences with a loss of their own");
  std::vector<float> found = log_probabilities_once(batch);
  const auto is_nan = [](float value) { return std::isnan(value); };
  while (std::ranges::any_of(found, is_nan) && plan_.run.reruns_overflow && make_more_room()) {
    found = log_probabilities_once(batch);
  }
  return found;
}

std::vector<float> Engine::log_probabilities_once(const StepBatch& batch) {
  const int64_t width = batch.shape().microbatch;
  std::vector<float> own;
  for (int64_t microbatch = 0; microbatch < plan_.run.num_microbatches; ++microbatch) {
    run_eval(batch, microbatch);
    for (size_t local = 0; local < executors_.size(); ++local) {
      append_result(own, local, fmt::format("eval.{}", kSequenceLossesValue), width);
    }
  }
  const std::vector<float> all = results_of_ranks(own, static_cast<size_t>(width));
  const int num_ranks = plan_.run.mesh.num_ranks();
  std::vector<float> found(static_cast<size_t>(batch.shape().samples_per_step()), 0.0f);
  auto next = all.begin();
  for (int64_t microbatch = 0; microbatch < plan_.run.num_microbatches; ++microbatch) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      const int64_t first =
          first_sample_of(batch.shape(), 0, plan_.run.mesh.position(rank).data, microbatch);
      for (int64_t i = 0; i < width; ++i) {  // context ranks add up their tokens'
        found[static_cast<size_t>(first + i)] -= *next++;
      }
    }
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
