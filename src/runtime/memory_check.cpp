#include "runtime/memory_check.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "config/validate.h"
#include "plan/run_spec.h"
#include "plan/smaller_settings.h"
#include "runtime/engine.h"
#include "runtime/host_memory.h"
#include "runtime/host_needs.h"

namespace braid {
namespace {

constexpr const char* kHost = "this machine";

DeviceNeedsOptions gpu_options(const RunConfig& config, const GpuMemory& gpu) {
  return {.repeatable = config.runtime.repeatable, .with_context = !gpu.has_context};
}

/// For the planned rank that needs most, in its share of a GPU.
MemoryUse gpu_use(const RunPlan& plan, const GpuMemory& gpu) {
  const RunConfig& config = plan.run.config;
  const int64_t sharers = std::min(config.runtime.ranks_per_gpu, config.parallel.ranks);
  MemoryUse use{.needs = {},
                .owner = sharers == 1 ? gpu.name : "each rank's share of " + gpu.name,
                .kind = "GPU memory",
                .free_bytes = gpu.free_bytes / sharers};
  for (const RankPlan& rank : plan.ranks) {
    MemoryNeeds needs = rank_needs(*gpu.backend, rank, gpu_options(config, gpu));
    if (needs.bytes() > use.needs.bytes()) {
      use.needs = std::move(needs);
      use.rank = rank.programs.front().rank;
    }
  }
  return use;
}

MemoryUse host_use(MemoryNeeds needs, int64_t free_bytes) {
  return {.needs = std::move(needs), .owner = kHost, .kind = "memory", .free_bytes = free_bytes};
}

bool all_fit(const std::vector<MemoryUse>& uses) {
  return std::all_of(uses.begin(), uses.end(), [](const MemoryUse& use) { return use.fits(); });
}

/// State that lives from step to step, for the planned rank that has most of it: microbatch size
/// and recomputation do not reduce it.
int64_t state_bytes(const RunPlan& plan) {
  int64_t most = 0;
  for (const RankPlan& rank : plan.ranks) {
    int64_t bytes = 0;
    for (const auto& [role, role_bytes] : rank.memory.persistent_by_role) {
      bytes += role == BufferRole::kIo ? 0 : role_bytes;
    }
    most = std::max(most, bytes);
  }
  return most;
}

/// Plans a run that does not fit with other settings.
class Replanner {
 public:
  Replanner(const RunPlan& plan, const RunMemory& memory, const MemoryUse& shortage)
      : run_(plan.run),
        memory_(memory),
        kind_(shortage.kind),
        worst_rank_(shortage.rank),
        edge_ranks_(edge_ranks(plan.run.mesh)),
        state_is_too_large_(state_bytes(plan) > shortage.free_bytes) {}

  std::optional<int64_t> fitting_bytes(const RunConfig& changed) const {
    if (state_is_too_large_ && changed.parallel.shard == run_.config.parallel.shard) {
      return std::nullopt;
    }
    try {
      validate(changed);
      const RunSpec run = resolve_again(run_, changed);
      // The rank that needs most comes first: it alone can reject the settings.
      if (worst_rank_ && !all_fit(uses_of(run, {*worst_rank_}))) {
        return std::nullopt;
      }
      const std::vector<MemoryUse> uses = uses_of(run, edge_ranks_);
      return all_fit(uses) ? std::optional(bytes_of(uses)) : std::nullopt;
    } catch (const ConfigError&) {  // another rule rejects these settings
      return std::nullopt;
    }
  }

 private:
  std::vector<MemoryUse> uses_of(const RunSpec& run, const std::vector<int>& ranks) const {
    return memory_uses(plan_run(run, {.ranks = ranks}), memory_);
  }

  /// Needed bytes of the memory that was too small.
  int64_t bytes_of(const std::vector<MemoryUse>& uses) const {
    const auto found = std::find_if(uses.begin(), uses.end(),
                                    [&](const MemoryUse& use) { return use.kind == kind_; });
    check(found != uses.end(), "no use of {}", kind_);
    return found->needs.bytes();
  }

  const RunSpec& run_;
  const RunMemory& memory_;
  std::string kind_;
  std::optional<int> worst_rank_;
  std::vector<int> edge_ranks_;
  bool state_is_too_large_;
};

/// Advice for the user if no setting helps.
std::string last_resort(const RunConfig& config, const MemoryUse& shortage) {
  const std::string ranks =
      shortage.rank ? fmt::format(", or raise parallel.tensor = {} or parallel.pipeline = {}",
                                  config.parallel.tensor, config.parallel.pipeline)
                    : fmt::format(" or parallel.ranks = {}", config.parallel.ranks);
  const MemoryNeeds::Part& largest = shortage.needs.largest();
  return fmt::format(
      "recompute, smaller microbatches, shards and offload do not make it fit, even together; {} "
      "{} take the most: lower train.sequence = {} or the sizes in [model]{}",
      largest.what, format_bytes(largest.bytes), config.train.sequence, ranks);
}

}  // namespace

std::vector<int> edge_ranks(const Mesh& mesh) {
  std::set<int> ranks;
  const MeshSizes& sizes = mesh.sizes();
  for (int stage = 0; stage < sizes.pipeline; ++stage) {
    ranks.insert(mesh.rank_at({.pipeline = stage}));
    ranks.insert(mesh.rank_at({.tensor = sizes.tensor - 1,
                               .context = sizes.context - 1,
                               .data = sizes.data - 1,
                               .pipeline = stage}));
  }
  return {ranks.begin(), ranks.end()};
}

std::optional<GpuMemory> memory_of(const DeviceSpec& device) {
  return device.is_host ? std::nullopt
                        : std::optional(GpuMemory{.name = "one " + device.description,
                                                  .free_bytes = device.memory_bytes,
                                                  .backend = &backend_named(device.backend)});
}

RunMemory free_memory(const Device& device, int threads_per_rank) {
  RunMemory memory{
      .gpu = std::nullopt, .host_bytes = free_host_bytes(), .threads_per_rank = threads_per_rank};
  if (device.gpu) {
    memory.gpu = GpuMemory{.name = "the " + device.gpu->name,
                           .free_bytes = device.backend->free_bytes(device.gpu->device),
                           .has_context = true,
                           .backend = device.backend};
  }
  return memory;
}

std::vector<MemoryUse> memory_uses(const RunPlan& plan, const RunMemory& memory) {
  std::vector<MemoryUse> uses;
  if (memory.gpu) {
    uses.push_back(gpu_use(plan, *memory.gpu));
  }
  if (memory.host_bytes) {
    uses.push_back(host_use(memory.gpu
                                ? staging_needs(plan, memory.host_ranks)
                                : cpu_needs(plan, memory.threads_per_rank, memory.host_ranks),
                            *memory.host_bytes));
  }
  return uses;
}

std::string describe_uses(const std::vector<MemoryUse>& uses) {
  std::string text;
  for (const MemoryUse& use : uses) {
    text += use.fits() ? fmt::format("fits      {} of {} in {}: {}, {}\n",
                                     format_bytes(use.needs.bytes()), format_bytes(use.free_bytes),
                                     use.owner, use.needs.whose, describe_parts(use.needs))
                       : fmt::format("does not fit: {}\n", describe_shortage(use));
  }
  return text;
}

std::string describe_shortage(const MemoryUse& use) {
  return fmt::format(
      "{} need{} {} of {}, {} has {} free: {}", use.needs.whose,
      use.needs.whose.ends_with("ranks") && !use.needs.whose.starts_with("1 ") ? "" : "s",
      format_bytes(use.needs.bytes()), use.kind, use.owner, format_bytes(use.free_bytes),
      describe_parts(use.needs));
}

void check_memory(const RunPlan& plan, const RunMemory& memory) {
  const std::vector<MemoryUse> uses = memory_uses(plan, memory);
  const auto shortage =
      std::find_if(uses.begin(), uses.end(), [](const MemoryUse& use) { return !use.fits(); });
  if (shortage == uses.end()) {
    return;
  }
  const Replanner replanner(plan, memory, *shortage);
  const auto fitting = find_fitting_setting(
      plan.run.config, plan.run.model.layers.size(),
      [&](const RunConfig& changed) { return replanner.fitting_bytes(changed); });
  throw_config_error(
      "{}; {}", describe_shortage(*shortage),
      fitting ? fmt::format("nearest valid setting: {} ({})", describe_changes(fitting->changes),
                            format_bytes(fitting->needed_bytes))
              : last_resort(plan.run.config, *shortage));
}

}  // namespace braid
