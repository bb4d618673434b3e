#include "runtime/host_needs.h"

#include <fmt/core.h>

#include <numeric>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/registry/registry.h"
#include "base/errors.h"
#include "config/validate.h"
#include "plan/rank_programs.h"
#include "runtime/device_shards.h"
#include "state/checkpointing.h"
#include "state/state_map.h"

namespace braid {
namespace {

constexpr std::string_view kOffloaded = "activations on the host";
constexpr std::string_view kPieces = "loading and saving";
constexpr std::string_view kCopies = "copies for checkpoint.async";

std::string count_ranks(int64_t count) {
  return fmt::format("{} rank{}", count, count == 1 ? "" : "s");
}

bool has_all_stages(const RunPlan& plan) {
  std::set<int> stages;
  for (const RankPlan& rank : plan.ranks) {
    stages.insert(plan.run.mesh.position(rank.programs.front().rank).pipeline);
  }
  return static_cast<int64_t>(stages.size()) == plan.run.mesh.sizes().pipeline;
}

/// The given ranks of a host, or all ranks of the run if none are given.
std::vector<int> ranks_on_host(const RunPlan& plan, std::span<const int> host_ranks) {
  std::vector<int> ranks(host_ranks.begin(), host_ranks.end());
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(plan.run.mesh.num_ranks()));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  return ranks;
}

/// "8 ranks", or "8 of 16 ranks".
std::string whose(const RunPlan& plan, std::span<const int> host_ranks) {
  const int64_t all = plan.run.mesh.num_ranks();
  const auto here = static_cast<int64_t>(ranks_on_host(plan, host_ranks).size());
  return here == all ? count_ranks(all) : fmt::format("{} of {}", here, count_ranks(all));
}

/// By planned rank: the number of ranks of the host that it represents.
std::vector<int64_t> ranks_per_plan(const RunPlan& plan, std::span<const int> host_ranks) {
  const size_t num_planned = plan.ranks.size();
  check(num_planned > 0, "no rank is planned");
  const std::vector<int> ranks = ranks_on_host(plan, host_ranks);
  if (!has_all_stages(plan)) {
    return std::vector<int64_t>(
        num_planned, static_cast<int64_t>((ranks.size() + num_planned - 1) / num_planned));
  }
  const RankPrograms programs = rank_programs(plan);
  std::vector<int64_t> counts(num_planned, 0);
  for (const int rank : ranks) {
    ++counts[programs.program_of.at(static_cast<size_t>(rank))];
  }
  return counts;
}

/// The share of the host in the whole state, where some stages are not planned.
int64_t share_of_state(const RunPlan& plan, int64_t host_ranks) {
  const int64_t parts = plan.run.optimizer.ema > 0 ? 4 : 3;  // weight, moments, average
  int64_t elems = 0;
  for (const Parameter& parameter : plan.layout.parameters) {
    elems += parameter.frozen ? 0 : parameter.shape.num_elems();
  }
  const int64_t ranks = plan.run.mesh.num_ranks();
  return (elems + ranks - 1) / ranks * host_ranks * parts * static_cast<int64_t>(sizeof(float));
}

/// What the ranks of this host copy for checkpoints.
int64_t copies_on_host(const RunPlan& plan, std::span<const int> host_ranks) {
  if (!copies_state(plan.run.config)) {
    return 0;
  }
  const std::vector<int> ranks = ranks_on_host(plan, host_ranks);
  return has_all_stages(plan)
             ? copied_bytes(make_state_map(plan), plan.layout, plan.run.model, ranks)
             : share_of_state(plan, std::ssize(ranks));
}

/// Sum over these ranks, with rank i counted `times[i]` times.
MemoryNeeds ranks_on_cpu(std::span<const RankPlan> ranks, int threads_per_rank,
                         std::span<const int64_t> times) {
  MemoryNeeds needs;
  for (size_t i = 0; i < ranks.size(); ++i) {
    needs.add(ranks[i].memory, times[i]);
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    needs.add(kOffloaded, times[i] * ranks[i].memory.host_bytes);
    for (const DeviceNeed& need :
         host_backend().needs(ranks[i].programs, {.num_workers = threads_per_rank})) {
      needs.add(need.what, times[i] * need.bytes);
    }
  }
  return needs;
}

}  // namespace

MemoryNeeds cpu_needs(const RunPlan& plan, int threads_per_rank, std::span<const int> host_ranks) {
  MemoryNeeds needs = ranks_on_cpu(plan.ranks, threads_per_rank, ranks_per_plan(plan, host_ranks));
  needs.whose = whose(plan, host_ranks);
  needs.add(kPieces, checkpoint_host_bytes(plan.layout));
  needs.add(kCopies, copies_on_host(plan, host_ranks));
  return needs;
}

MemoryNeeds cpu_needs(const RankPlan& rank, const ParameterLayout& layout, int threads) {
  constexpr int64_t kOnce = 1;
  MemoryNeeds needs = ranks_on_cpu({&rank, 1}, threads, {&kOnce, 1});
  needs.whose = count_ranks(1);
  needs.add(kPieces, checkpoint_host_bytes(layout));
  return needs;
}

MemoryNeeds staging_needs(const RunPlan& plan, std::span<const int> host_ranks) {
  MemoryNeeds needs{.whose = whose(plan, host_ranks), .parts = {}};
  const std::vector<int64_t> times = ranks_per_plan(plan, host_ranks);
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    needs.add(kOffloaded, times[i] * plan.ranks[i].memory.host_bytes);
  }
  needs.add(kPieces, checkpoint_host_bytes(plan.layout));
  needs.add(kCopies, copies_on_host(plan, host_ranks));
  return needs;
}

}  // namespace braid
