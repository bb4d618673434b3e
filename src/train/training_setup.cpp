#include "train/training_setup.h"

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_fields.h"
#include "base/env.h"
#include "base/host_name.h"
#include "config/load.h"
#include "config/reference.h"
#include "launch/agreement.h"
#include "plan/device_cost.h"
#include "plan/memory_needs.h"
#include "plan/parallel_setup.h"
#include "plan/rank_programs.h"
#include "plan/row_exchange_setup.h"
#include "runtime/choose_settings.h"
#include "runtime/memory_check.h"
#include "runtime/room_needs.h"

namespace braid {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

/// The minimum of the free memory on the GPUs of all processes, and on their hosts.
RunMemory least_memory(RunMemory memory, ProcessGroup& processes) {
  const auto least = [&](const char* what, int64_t own) {
    for (const std::string& bytes : processes.all_gather(what, ByteWriter().number(own).take())) {
      own = std::min(own, ByteReader(bytes).number<int64_t>());
    }
    return own;
  };
  if (memory.gpu) {
    memory.gpu->free_bytes = least("free memory of GPUs", memory.gpu->free_bytes);
  }
  if (memory.host_bytes) {
    memory.host_bytes = least("free memory of hosts", *memory.host_bytes);
  }
  return memory;
}

/// The settings that the first process chooses, assuming that all hosts have as many ranks as its
/// own.
RunSpec chosen_settings(const RunConfig& config, int64_t vocabulary, const Device& device,
                        const RunMemory& memory, ProcessGroup& processes,
                        const PlanOutput& output) {
  const RunMemory least = least_memory(memory, processes);
  if (!processes.leads()) {
    return resolve_run(
        parse_config(processes.broadcast("settings", {}), "the configuration of rank 0"),
        vocabulary);
  }
  const int64_t ranks_per_host =
      memory.host_ranks.empty() ? config.parallel.ranks : std::ssize(memory.host_ranks);
  const RunConfig priced =
      with_device_cost(device.gpu ? with_exchange(config, ranks_per_host) : config,
                       device.gpu ? std::optional(device.gpu->name) : std::nullopt, ranks_per_host);
  RunSpec chosen = choose_settings(resolve_run(priced, vocabulary), least,
                                   {.print = output.print, .progress_bar = output.progress_bar});
  processes.broadcast("settings", to_toml(chosen.config));
  return chosen;
}

/// The free memory before any rank allocates: ranks that share a GPU or a host measure at the same
/// time.
RunMemory memory_for_all(const RunConfig& config, const Device& device, ProcessGroup& processes) {
  const int threads = threads_per_rank(config.runtime.threads, config.parallel.ranks);
  const bool shares = device.gpu && device.ranks_per_gpu > 1;
  if (shares) {
    free_memory(device, threads);  // creates the context
    processes.barrier("contexts on shared GPUs");
  }
  RunMemory memory = free_memory(device, threads);
  if (processes.size() > 1) {
    memory.host_ranks = processes_of_host(processes, host_name());
  }
  return memory;
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_of_run(const RunConfig& config, ProcessGroup& processes) {
  agree_on(processes, facts_of_start(config));
  check_source(config);
  return load_tokenizer(config.data.tokenizer);
}

Device device_of_process(const RunConfig& config, int local_process, ProcessGroup& processes) {
  Device device = choose_device(config, gpus_for(config),
                                processes.size() > 1 ? std::optional(local_process) : std::nullopt);
  agree_on_device(processes, device);
  agree_on(processes, std::array{fact_of_numerics(device)});
  return device;
}

std::vector<int> processes_of_host(ProcessGroup& processes, const std::string& host) {
  const std::vector<std::string> hosts = processes.all_gather("hosts", host);
  std::vector<int> same;
  for (int process = 0; process < processes.size(); ++process) {
    if (hosts[static_cast<size_t>(process)] == host) {
      same.push_back(process);
    }
  }
  return same;
}

PlannedTraining plan_training(const RunConfig& config, int64_t tokenizer_vocabulary,
                              const Device& device, ProcessGroup& processes,
                              const PlanOutput& output) {
  const RunMemory memory = memory_for_all(config, device, processes);
  const RunSpec run =
      chosen_settings(config, tokenizer_vocabulary, device, memory, processes, output);
  RunPlan plan = processes.size() > 1 ? plan_for_rank(run, processes.index()) : plan_run(run);
  if (processes.size() > 1) {
    agree_on_programs(processes, plan);
  }
  const std::string more_room = processes.leads() ? describe_more_room(plan, memory) : "";
  processes.barrier("plan");  // rank 0 has more to do; later the others would time out on it
  std::string description =
      to_toml(run.config) + "\n" + describe_device(device) + describe_run_plan(plan) +
      device.backend->describe_communication_needs(plan.ranks.front().programs) + more_room + "\n";
  if (output.prints_plan) {
    output.print(description);
  }
  check_memory(plan, memory);
  return {.plan = std::move(plan), .description = std::move(description)};
}

TrainingData open_training_data(const RunConfig& config, const Tokenizer& tokenizer,
                                ProcessGroup& processes, const TrainingDataOptions& options) {
  if (!processes.leads()) {
    processes.barrier("the data");
  }
  TrainingData data(config, tokenizer, options);
  if (processes.leads()) {
    processes.barrier("the data");
  }
  agree_on(
      processes,
      std::array{Fact{.name = "training data",
                      .value = data.identity(),
                      .advice = "data.train or data.blend must name the same files on all hosts"},
                 Fact{.name = "validation data",
                      .value = data.validation_identity(),
                      .advice = "data.valid must name the same files on all hosts"},
                 Fact{.name = "tokenizer",
                      .value = tokenizer_identity(tokenizer),
                      .advice = "data.tokenizer must name the same file on all hosts"}});
  return data;
}

EngineOptions training_engine_options(const RunSpec& run, const Device& device,
                                      ProcessGroup& processes) {
  const RunConfig& config = run.config;
  return {
      .threads_per_rank = threads_per_rank(config.runtime.threads, config.parallel.ranks),
      .device = device,
      .processes = &processes,
      .cache_folder = user_cache_folder(),
      .timeout_ns = config.runtime.timeout_s * kNsPerSecond,
      .links = run.links,
      .repeatable = config.runtime.repeatable,
      .nccl_windows = config.runtime.nccl_windows,
      .sync_each_task = read_debug_options().sync_tasks,
      // A repeated step must not be followed by another step in flight, which changes the weights.
      .steps_in_flight = run.detect_nan == NanCheck::kTensors
                             ? 1
                             : static_cast<int>(config.runtime.steps_in_flight)};
}

}  // namespace braid
