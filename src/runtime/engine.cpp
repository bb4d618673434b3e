#include "runtime/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "backends/run_ranks.h"
#include "base/errors.h"
#include "trace/peer_waits.h"
#include "trace/rank_clocks.h"

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
      num_threads_(options.threads_per_rank * plan_.mesh.num_ranks()) {
  transports_ = make_in_process_transports({.num_ranks = plan_.mesh.num_ranks(),
                                            .timeout_ns = options.timeout_ns,
                                            .links = options.links});
  rendezvous_ = make_in_process_rendezvous(plan_.mesh.num_ranks(), options.timeout_ns);
  make_executors(options);
}

/// Side by side, because ranks on GPUs wait for each other.
void Engine::make_executors(const EngineOptions& options) {
  executors_.resize(plan_.ranks.size());
  run_side_by_side(executors_.size(), [&](size_t rank) {
    try {
      executors_[rank] = make_executor(rank, options);
    } catch (const std::exception& error) {
      rendezvous_[rank]->abort(error.what());
      throw;
    }
  });
}

std::unique_ptr<Executor> Engine::make_executor(size_t rank, const EngineOptions& options) {
  const RankPlan& rank_plan = plan_.ranks[rank];
  if (options.device.gpu) {
    return make_cuda_rank(rank_plan.programs, rank_plan.memory,
                          {.device = options.device.gpu_of(rank).device,
                           .cache_folder = options.cache_folder,
                           .poison_step_arena = options.poison_step_arena,
                           .eager = options.eager,
                           .sync_each_task = options.sync_each_task,
                           .repeatable = options.repeatable,
                           .rendezvous = rendezvous_[rank].get()});
  }
  return std::make_unique<CpuExecutor>(
      rank_plan.programs, rank_plan.memory,
      CpuExecutorOptions{.transport = transports_[rank].get(),
                         .num_workers = options.threads_per_rank,
                         .poison_step_arena = options.poison_step_arena,
                         .make_kernel = options.cpu_kernels
                                            ? options.cpu_kernels(static_cast<int>(rank))
                                            : CpuKernelFactory(),
                         .stuck_timeout_ns = options.stuck_timeout_ns});
}

Engine::~Engine() = default;

int64_t Engine::allocated_bytes(int rank) const {
  return executors_.at(static_cast<size_t>(rank))->allocated_bytes();
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
  for (size_t rank = 0; rank < executors_.size(); ++rank) {
    Executor& executor = *executors_[rank];
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

double Engine::evaluate(const StepBatch& batch) {
  const std::array scale{loss_scale_of(batch)};
  double loss = 0;
  for (int64_t microbatch = 0; microbatch < plan_.num_microbatches; ++microbatch) {
    for (size_t rank = 0; rank < executors_.size(); ++rank) {
      const int data_rank = plan_.mesh.position(static_cast<int>(rank)).data;
      const std::vector<int64_t> positions = positions_of(rank, batch);
      if (has_buffer(rank, kEvalProgram, "eval.tokens")) {
        write_values<int32_t>(*executors_[rank], "eval.tokens", 0,
                              batch.tokens_at(data_rank, microbatch, positions));
      }
      if (has_buffer(rank, kEvalProgram, "eval.labels")) {
        write_values<int32_t>(*executors_[rank], "eval.labels", 0,
                              batch.labels_at(data_rank, microbatch, positions));
        write_values<float>(*executors_[rank], "eval.loss_scale", 0, scale);
      }
    }
    run_all(kEvalProgram);
    for (size_t rank = 0; rank < executors_.size(); ++rank) {
      const bool counts = plan_.mesh.position(static_cast<int>(rank)).tensor == 0 &&
                          has_buffer(rank, kEvalProgram, "eval.loss");
      loss += counts ? read_values<float>(*executors_[rank], "eval.loss", 1).front() : 0.0f;
    }
  }
  return loss;
}

DeviceState Engine::state() const {
  return {state_map_, executors()};
}

DeviceShards Engine::state_shards() const {
  return {state_map_, plan_.layout, plan_.model, executors()};
}

void Engine::write_state(const StateSource& source) {
  WorkerPool workers(num_threads_);
  braid::write_state(source, plan_.layout, state_map_, executors(), workers);
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

Timeline Engine::timeline() const {
  Timeline timeline{.source = source_, .ranks = {}};
  for (const auto& executor : executors_) {
    timeline.ranks.push_back(executor->timeline());
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
