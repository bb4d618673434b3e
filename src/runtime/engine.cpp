#include "runtime/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <thread>
#include <utility>

#include "backends/cpu/cpu_executor.h"
#include "backends/run_ranks.h"
#include "base/errors.h"

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

bool has_main_weights(const Program& train, const ParameterLayout& layout) {
  const std::string name = main_weight_buffer_name(layout.units.front());
  return std::any_of(train.buffers.begin(), train.buffers.end(),
                     [&](const Buffer& buffer) { return buffer.name == name; });
}

}  // namespace

int threads_per_rank(int64_t configured, int64_t num_ranks) {
  const auto cores = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  return static_cast<int>(configured > 0 ? configured : std::max<int64_t>(1, cores / num_ranks));
}

Engine::Engine(RunPlan plan, const EngineOptions& options)
    : plan_(std::move(plan)), source_(options.device.gpu ? "cuda" : "cpu") {
  transports_ = make_in_process_transports({.num_ranks = plan_.mesh.num_ranks()});
  for (size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
    executors_.push_back(make_executor(rank, options));
  }
}

std::unique_ptr<Executor> Engine::make_executor(size_t rank, const EngineOptions& options) {
  const RankPlan& rank_plan = plan_.ranks[rank];
  if (options.device.gpu) {
    return make_cuda_rank(rank_plan.programs, rank_plan.memory,
                          {.device = options.device.gpu->device,
                           .cache_folder = options.cache_folder,
                           .poison_step_arena = options.poison_step_arena,
                           .eager = options.eager});
  }
  return std::make_unique<CpuExecutor>(
      rank_plan.programs, rank_plan.memory,
      CpuExecutorOptions{.transport = transports_[rank].get(),
                         .num_workers = options.threads_per_rank,
                         .poison_step_arena = options.poison_step_arena});
}

Engine::~Engine() = default;

int64_t Engine::allocated_bytes(int rank) const {
  return executors_.at(static_cast<size_t>(rank))->allocated_bytes();
}

void Engine::run_all(size_t program_index) {
  std::vector<Executor*> executors;
  for (const auto& executor : executors_) {
    executors.push_back(executor.get());
  }
  run_ranks(executors, program_index);
}

void Engine::write_inputs(const StepBatch& batch) {
  const std::array scale{loss_scale_of(batch)};
  for (size_t rank = 0; rank < executors_.size(); ++rank) {
    Executor& executor = *executors_[rank];
    const int data_rank = plan_.mesh.position(static_cast<int>(rank)).data;
    for (int64_t microbatch = 0; microbatch < plan_.num_microbatches; ++microbatch) {
      const std::span<const int32_t> tokens = batch.tokens(data_rank, microbatch);
      const int64_t first = microbatch * static_cast<int64_t>(tokens.size());
      write_values(executor, "tokens", first, tokens);
      write_values(executor, "labels", first, batch.labels(data_rank, microbatch));
    }
    write_values<float>(executor, "loss_scale", 0, scale);
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

double Engine::evaluate(const StepBatch& batch) {
  const std::array scale{loss_scale_of(batch)};
  double loss = 0;
  for (int64_t microbatch = 0; microbatch < plan_.num_microbatches; ++microbatch) {
    for (size_t rank = 0; rank < executors_.size(); ++rank) {
      const int data_rank = plan_.mesh.position(static_cast<int>(rank)).data;
      write_values(*executors_[rank], "eval.tokens", 0, batch.tokens(data_rank, microbatch));
      write_values(*executors_[rank], "eval.labels", 0, batch.labels(data_rank, microbatch));
      write_values<float>(*executors_[rank], "eval.loss_scale", 0, scale);
    }
    run_all(kEvalProgram);
    for (const auto& executor : executors_) {
      loss += read_values<float>(*executor, "eval.loss", 1).front();
    }
  }
  return loss;
}

ModelState Engine::read_state() const {
  ModelState state = empty_state(plan_.layout);
  Executor& source = *executors_.front();
  const bool main_weights =
      has_main_weights(plan_.ranks.front().programs[kTrainProgram], plan_.layout);
  for (size_t i = 0; i < plan_.layout.units.size(); ++i) {
    const ParameterUnit& unit = plan_.layout.units[i];
    const auto read_unit = [&](const std::string& buffer, std::vector<float>& values) {
      source.read(buffer, 0, std::as_writable_bytes(std::span(values)));
    };
    read_unit(main_weights ? main_weight_buffer_name(unit) : param_buffer_name(unit),
              state.weights[i]);
    read_unit(exp_avg_buffer_name(unit), state.exp_avg[i]);
    read_unit(exp_avg_sq_buffer_name(unit), state.exp_avg_sq[i]);
  }
  return state;
}

void Engine::write_state(const ModelState& state) {
  const bool main_weights =
      has_main_weights(plan_.ranks.front().programs[kTrainProgram], plan_.layout);
  for (const auto& executor : executors_) {
    for (size_t i = 0; i < plan_.layout.units.size(); ++i) {
      const ParameterUnit& unit = plan_.layout.units[i];
      if (main_weights) {
        const std::vector<BFloat16> rounded(state.weights[i].begin(), state.weights[i].end());
        write_values<BFloat16>(*executor, param_buffer_name(unit), 0, rounded);
        write_values<float>(*executor, main_weight_buffer_name(unit), 0, state.weights[i]);
      } else {
        write_values<float>(*executor, param_buffer_name(unit), 0, state.weights[i]);
      }
      write_values<float>(*executor, exp_avg_buffer_name(unit), 0, state.exp_avg[i]);
      write_values<float>(*executor, exp_avg_sq_buffer_name(unit), 0, state.exp_avg_sq[i]);
    }
  }
}

void Engine::set_tracing(bool enabled) {
  for (const auto& executor : executors_) {
    executor->set_tracing(enabled);
  }
}

Timeline Engine::timeline() const {
  Timeline timeline{.source = source_, .ranks = {}};
  for (const auto& executor : executors_) {
    timeline.ranks.push_back(executor->timeline());
  }
  return timeline;
}

}  // namespace braid
