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
#include "comm/socket_transport.h"
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

/// 1 / number of labels that count, over all ranks and microbatches.
float loss_scale_of(const StepBatch& batch) {
  int64_t valid = 0;
  for (int64_t rank = batch.rank_begin(); rank < batch.rank_end(); ++rank) {
    for (int64_t microbatch = 0; microbatch < batch.shape().num_microbatches; ++microbatch) {
      const std::span<const int32_t> labels = batch.labels(rank, microbatch);
      valid +=
          std::count_if(labels.begin(), labels.end(), [](int32_t label) { return label >= 0; });
    }
  }
  return 1.0f / static_cast<float>(std::max<int64_t>(1, valid));
}

}  // namespace

int threads_per_rank(int64_t configured, int64_t num_ranks) {
  const auto cores = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  return static_cast<int>(configured > 0 ? configured : std::max<int64_t>(1, cores / num_ranks));
}

Engine::Engine(RunPlan plan, const EngineOptions& options)
    : plan_(std::move(plan)),
      state_map_(make_state_map(plan_)),
      source_(options.device.gpu ? "cuda" : "cpu"),
      processes_(options.processes != nullptr && options.processes->size() > 1 ? options.processes
                                                                               : nullptr) {
  connect(options);
  num_threads_ = options.threads_per_rank * static_cast<int>(ranks_.size());
  make_executors(options);
}

/// The ranks of this process with each other or with those of the others.
void Engine::connect(const EngineOptions& options) {
  const int num_ranks = plan_.mesh.num_ranks();
  if (processes_ == nullptr) {
    ranks_.resize(plan_.ranks.size());
    std::iota(ranks_.begin(), ranks_.end(), size_t{0});
    transports_ = make_in_process_transports(
        {.num_ranks = num_ranks, .timeout_ns = options.timeout_ns, .links = options.links});
    rendezvous_ = make_in_process_rendezvous(num_ranks, options.timeout_ns);
    return;
  }
  check(processes_->size() == num_ranks, "{} processes of {} ranks", processes_->size(), num_ranks);
  ranks_ = {static_cast<size_t>(processes_->index())};
  if (!options.device.gpu) {
    transports_.push_back(
        make_socket_transport({.processes = processes_, .timeout_ns = options.timeout_ns}));
  }
}

/// Side by side, because ranks on GPUs wait for each other.
void Engine::make_executors(const EngineOptions& options) {
  executors_.resize(ranks_.size());
  run_side_by_side(executors_.size(), [&](size_t local) {
    try {
      executors_[local] = make_executor(local, options);
    } catch (const AbortedError&) {
      throw;
    } catch (const std::exception& error) {
      if (processes_ == nullptr) {  // else whoever ends the process tells the others
        rendezvous_[local]->abort(error.what());
      }
      throw;
    }
  });
}

std::unique_ptr<Executor> Engine::make_executor(size_t local, const EngineOptions& options) {
  const size_t rank = ranks_[local];
  const RankPlan& rank_plan = plan_.ranks[rank];
  if (options.device.gpu) {
    return make_cuda_rank(
        rank_plan.programs, rank_plan.memory,
        {.device = options.device.gpu_of(rank).device,
         .cache_folder = options.cache_folder,
         .poison_step_arena = options.poison_step_arena,
         .eager = options.eager,
         .sync_each_task = options.sync_each_task,
         .repeatable = options.repeatable,
         .nccl_windows = options.nccl_windows,
         .rendezvous = processes_ != nullptr ? processes_ : rendezvous_[local].get(),
         .timeout_ns = options.timeout_ns});
  }
  return std::make_unique<CpuExecutor>(
      rank_plan.programs, rank_plan.memory,
      CpuExecutorOptions{.transport = transports_[local].get(),
                         .num_workers = options.threads_per_rank,
                         .poison_step_arena = options.poison_step_arena,
                         .make_kernel = options.cpu_kernels
                                            ? options.cpu_kernels(static_cast<int>(rank))
                                            : CpuKernelFactory(),
                         .stuck_timeout_ns = options.stuck_timeout_ns});
}

Engine::~Engine() = default;

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
  std::vector<Executor*> executors(plan_.ranks.size(), nullptr);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    executors[ranks_[i]] = executors_[i].get();
  }
  return executors;
}

void Engine::run_all(size_t program_index) {
  run_ranks(executors(), program_index);
}

bool Engine::has_buffer(size_t rank, size_t program_index, std::string_view name) const {
  return std::ranges::any_of(plan_.ranks[rank].programs[program_index].buffers,
                             [&](const Buffer& buffer) { return buffer.name == name; });
}

/// Where in a sequence the tokens of a rank stand.
std::vector<int64_t> Engine::positions_of(size_t rank, const StepBatch& batch) const {
  return context_shard(plan_.mesh, static_cast<int>(rank), plan_.parallel)
      .position_list(batch.sequence_tokens());
}

/// Tokens go to ranks with the embedding, labels to those with the loss.
void Engine::write_inputs(const StepBatch& batch) {
  const std::array scale{loss_scale_of(batch)};
  for (size_t i = 0; i < executors_.size(); ++i) {
    const size_t rank = ranks_[i];
    Executor& executor = *executors_[i];
    const int data_rank = plan_.mesh.position(static_cast<int>(rank)).data;
    const std::vector<int64_t> positions = positions_of(rank, batch);
    const bool embeds = has_buffer(rank, kTrainProgram, "tokens");
    const bool has_loss = has_buffer(rank, kTrainProgram, "labels");
    for (int64_t microbatch = 0; microbatch < plan_.num_microbatches; ++microbatch) {
      const int64_t first =
          microbatch * batch.shape().microbatch * static_cast<int64_t>(positions.size());
      if (embeds) {
        write_values<int32_t>(executor, "tokens", first,
                              batch.tokens_at(data_rank, microbatch, positions));
      }
      if (has_loss) {
        write_values<int32_t>(executor, "labels", first,
                              batch.labels_at(data_rank, microbatch, positions));
      }
    }
    if (has_loss) {
      write_values<float>(executor, "loss_scale", 0, scale);
    }
  }
}

StepResult Engine::train_step(const StepBatch& batch, const OptimizerConfig& optimizer,
                              double learning_rate, int64_t step) {
  write_inputs(batch);
  const auto t = static_cast<double>(step);
  const std::array scalars{static_cast<float>(learning_rate),
                           static_cast<float>(1.0 - std::pow(optimizer.beta1, t)),
                           static_cast<float>(1.0 - std::pow(optimizer.beta2, t))};
  for (const auto& executor : executors_) {
    write_values<float>(*executor, "optimizer_scalars", 0, scalars);
  }
  run_all(kTrainProgram);
  Executor& first = *executors_.front();
  StepResult result;
  for (const float loss :
       read_values<float>(first, "losses", static_cast<size_t>(plan_.num_microbatches))) {
    result.loss += loss;
  }
  result.grad_norm = read_values<float>(first, "grad_norm", 1).front();
  result.skipped = read_values<float>(first, "grad_scale", 1).front() == 0.0f;
  return result;
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

/// The rank's tokens and labels of a microbatch.
void Engine::write_eval_inputs(size_t local, const StepBatch& batch, int64_t microbatch) {
  const size_t rank = ranks_[local];
  Executor& executor = *executors_[local];
  const int data_rank = plan_.mesh.position(static_cast<int>(rank)).data;
  const std::vector<int64_t> positions = positions_of(rank, batch);
  if (has_buffer(rank, kEvalProgram, "eval.tokens")) {
    write_values<int32_t>(executor, "eval.tokens", 0,
                          batch.tokens_at(data_rank, microbatch, positions));
  }
  if (has_buffer(rank, kEvalProgram, "eval.labels")) {
    const std::array scale{loss_scale_of(batch)};
    write_values<int32_t>(executor, "eval.labels", 0,
                          batch.labels_at(data_rank, microbatch, positions));
    write_values<float>(executor, "eval.loss_scale", 0, scale);
  }
}

double Engine::evaluate(const StepBatch& batch) {
  std::vector<float> own;  // by microbatch and rank of this process; 0 of those that have no part
  for (int64_t microbatch = 0; microbatch < plan_.num_microbatches; ++microbatch) {
    for (size_t local = 0; local < executors_.size(); ++local) {
      write_eval_inputs(local, batch, microbatch);
    }
    run_all(kEvalProgram);
    for (size_t local = 0; local < executors_.size(); ++local) {
      const size_t rank = ranks_[local];
      const bool counts = plan_.mesh.position(static_cast<int>(rank)).tensor == 0 &&
                          has_buffer(rank, kEvalProgram, "eval.loss");
      own.push_back(counts ? read_values<float>(*executors_[local], "eval.loss", 1).front() : 0.0f);
    }
  }
  return sum_of_losses(own);
}

/// In the order of microbatches and ranks, whatever process has which.
double Engine::sum_of_losses(const std::vector<float>& own) const {
  std::vector<std::vector<float>> all{own};  // by process
  if (processes_ != nullptr) {
    const auto bytes = std::as_bytes(std::span(own));
    all.clear();
    for (const std::string& given : processes_->all_gather(
             "losses", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()))) {
      std::vector<float> losses(own.size());
      check(given.size() == own.size() * sizeof(float), "{} bytes of losses", given.size());
      std::memcpy(losses.data(), given.data(), given.size());
      all.push_back(std::move(losses));
    }
  }
  double loss = 0;
  const auto num_microbatches = static_cast<size_t>(plan_.num_microbatches);
  const size_t per_microbatch = own.size() / num_microbatches;
  for (size_t microbatch = 0; microbatch < num_microbatches; ++microbatch) {
    for (const std::vector<float>& losses : all) {
      for (size_t i = 0; i < per_microbatch; ++i) {
        loss += losses[microbatch * per_microbatch + i];
      }
    }
  }
  return loss;
}

DeviceState Engine::state() const {
  check(processes_ == nullptr, "the state of all ranks lies in several processes");
  return {state_map_, executors()};
}

DeviceShards Engine::state_shards() const {
  return {state_map_, plan_.layout, plan_.model, executors_by_rank()};
}

void Engine::write_state(const StateSource& source) {
  WorkerPool workers(num_threads_);
  braid::write_state(source, plan_.layout, state_map_, executors_by_rank(), workers);
}

void Engine::set_tracing(bool enabled) {
  // Ranks whose launches wait for each other capture their steps anew, together.
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

/// Of all ranks where there is one process; of several the first one gets those of all.
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
