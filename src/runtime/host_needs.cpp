#include "runtime/host_needs.h"

#include <fmt/core.h>

#include <span>
#include <string>
#include <string_view>

#include "backends/cpu/cpu_scratch.h"
#include "base/errors.h"
#include "state/checkpointing.h"

namespace braid {
namespace {

constexpr std::string_view kOffloaded = "activations on the host";
constexpr std::string_view kPieces = "loading and saving";

std::string count_ranks(int64_t count) {
  return fmt::format("{} rank{}", count, count == 1 ? "" : "s");
}

/// Ranks of the run for each that is planned.
int64_t ranks_per_plan(const RunPlan& plan) {
  check(!plan.ranks.empty(), "no rank is planned");
  return (plan.mesh.num_ranks() + static_cast<int64_t>(plan.ranks.size()) - 1) /
         static_cast<int64_t>(plan.ranks.size());
}

/// `times` as much as the ranks need.
MemoryNeeds ranks_on_cpu(std::span<const RankPlan> ranks, int threads_per_rank, int64_t times) {
  MemoryNeeds needs;
  for (const RankPlan& rank : ranks) {
    needs.add(rank.memory, times);
  }
  for (const RankPlan& rank : ranks) {
    needs.add(kOffloaded, times * rank.memory.host_bytes);
    needs.add(kKernelScratch, times * cpu_scratch_bytes(rank.programs, threads_per_rank));
  }
  return needs;
}

}  // namespace

MemoryNeeds cpu_needs(const RunPlan& plan, int threads_per_rank) {
  const int64_t times = ranks_per_plan(plan);
  MemoryNeeds needs = ranks_on_cpu(plan.ranks, threads_per_rank, times);
  needs.whose = count_ranks(plan.mesh.num_ranks());
  needs.add(kPieces, checkpoint_host_bytes(plan.layout));
  return needs;
}

MemoryNeeds cpu_needs(const RankPlan& rank, const ParameterLayout& layout, int threads) {
  MemoryNeeds needs = ranks_on_cpu({&rank, 1}, threads, 1);
  needs.whose = count_ranks(1);
  needs.add(kPieces, checkpoint_host_bytes(layout));
  return needs;
}

MemoryNeeds staging_needs(const RunPlan& plan) {
  MemoryNeeds needs{.whose = count_ranks(plan.mesh.num_ranks()), .parts = {}};
  for (const RankPlan& rank : plan.ranks) {
    needs.add(kOffloaded, ranks_per_plan(plan) * rank.memory.host_bytes);
  }
  needs.add(kPieces, checkpoint_host_bytes(plan.layout));
  return needs;
}

}  // namespace braid
