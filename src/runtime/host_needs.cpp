#include "runtime/host_needs.h"

#include <fmt/core.h>

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/cpu_scratch.h"
#include "base/errors.h"
#include "plan/rank_programs.h"
#include "state/checkpointing.h"

namespace braid {
namespace {

constexpr std::string_view kOffloaded = "activations on the host";
constexpr std::string_view kPieces = "loading and saving";

std::string count_ranks(int64_t count) {
  return fmt::format("{} rank{}", count, count == 1 ? "" : "s");
}

bool has_all_stages(const RunPlan& plan) {
  std::set<int> stages;
  for (const RankPlan& rank : plan.ranks) {
    stages.insert(plan.mesh.position(rank.programs.front().rank).pipeline);
  }
  return static_cast<int64_t>(stages.size()) == plan.mesh.sizes().pipeline;
}

/// By planned rank: for how many ranks of the run it counts, itself included.
std::vector<int64_t> ranks_per_plan(const RunPlan& plan) {
  const size_t num_planned = plan.ranks.size();
  check(num_planned > 0, "no rank is planned");
  const auto num_ranks = static_cast<size_t>(plan.mesh.num_ranks());
  if (!has_all_stages(plan)) {
    return std::vector<int64_t>(num_planned,
                                static_cast<int64_t>((num_ranks + num_planned - 1) / num_planned));
  }
  std::vector<int64_t> counts(num_planned, 0);
  for (const uint32_t planned : rank_programs(plan).program_of) {
    ++counts[planned];
  }
  return counts;
}

/// Of these ranks, rank i as often as `times[i]`.
MemoryNeeds ranks_on_cpu(std::span<const RankPlan> ranks, int threads_per_rank,
                         std::span<const int64_t> times) {
  MemoryNeeds needs;
  for (size_t i = 0; i < ranks.size(); ++i) {
    needs.add(ranks[i].memory, times[i]);
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    needs.add(kOffloaded, times[i] * ranks[i].memory.host_bytes);
    needs.add(kKernelScratch, times[i] * cpu_scratch_bytes(ranks[i].programs, threads_per_rank));
  }
  return needs;
}

}  // namespace

MemoryNeeds cpu_needs(const RunPlan& plan, int threads_per_rank) {
  MemoryNeeds needs = ranks_on_cpu(plan.ranks, threads_per_rank, ranks_per_plan(plan));
  needs.whose = count_ranks(plan.mesh.num_ranks());
  needs.add(kPieces, checkpoint_host_bytes(plan.layout));
  return needs;
}

MemoryNeeds cpu_needs(const RankPlan& rank, const ParameterLayout& layout, int threads) {
  constexpr int64_t kOnce = 1;
  MemoryNeeds needs = ranks_on_cpu({&rank, 1}, threads, {&kOnce, 1});
  needs.whose = count_ranks(1);
  needs.add(kPieces, checkpoint_host_bytes(layout));
  return needs;
}

MemoryNeeds staging_needs(const RunPlan& plan) {
  MemoryNeeds needs{.whose = count_ranks(plan.mesh.num_ranks()), .parts = {}};
  const std::vector<int64_t> times = ranks_per_plan(plan);
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    needs.add(kOffloaded, times[i] * plan.ranks[i].memory.host_bytes);
  }
  needs.add(kPieces, checkpoint_host_bytes(plan.layout));
  return needs;
}

}  // namespace braid
