#include "runtime/memory_needs.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "backends/cpu/cpu_scratch.h"
#include "backends/cuda/device_needs.h"
#include "base/errors.h"
#include "base/text.h"
#include "memory/memory_classes.h"
#include "runtime/checkpointing.h"

namespace braid {
namespace {

/// Adds to the part of that name, which comes last if there is none.
void add(MemoryNeeds& needs, std::string_view what, int64_t bytes) {
  if (bytes == 0) {
    return;
  }
  const auto found = std::find_if(needs.parts.begin(), needs.parts.end(),
                                  [&](const auto& part) { return part.what == what; });
  if (found == needs.parts.end()) {
    needs.parts.push_back({.what = std::string(what), .bytes = bytes});
  } else {
    found->bytes += bytes;
  }
}

void add_classes(MemoryNeeds& needs, const MemoryPlan& memory, int64_t times) {
  for (const MemoryClass& found : memory_classes(memory)) {
    add(needs, found.title, times * found.bytes());
  }
}

constexpr std::string_view kScratch = "scratch of kernels";
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
    add_classes(needs, rank.memory, times);
  }
  for (const RankPlan& rank : ranks) {
    add(needs, kOffloaded, times * rank.memory.host_bytes);
    add(needs, kScratch, times * cpu_scratch_bytes(rank.programs, threads_per_rank));
  }
  return needs;
}

}  // namespace

int64_t MemoryNeeds::bytes() const {
  int64_t sum = 0;
  for (const Part& part : parts) {
    sum += part.bytes;
  }
  return sum;
}

const MemoryNeeds::Part& MemoryNeeds::largest() const {
  check(!parts.empty(), "nothing needs memory");
  return *std::max_element(parts.begin(), parts.end(),
                           [](const Part& a, const Part& b) { return a.bytes < b.bytes; });
}

std::string describe_parts(const MemoryNeeds& needs) {
  std::vector<std::string> texts;
  for (const MemoryNeeds::Part& part : needs.parts) {
    texts.push_back(fmt::format("{} {}", part.what, format_bytes(part.bytes)));
  }
  return join(texts, ", ");
}

MemoryNeeds gpu_needs(const RankPlan& rank, const GpuNeedsOptions& options) {
  MemoryNeeds needs{.whose = fmt::format("rank {}", rank.programs.front().rank), .parts = {}};
  add_classes(needs, rank.memory, 1);
  const CudaNeeds beside = cuda_needs(rank.programs, options.repeatable);
  add(needs, kScratch, beside.scratch_bytes);
  add(needs, "CUDA", beside.driver_bytes + (options.with_context ? kCudaContextBytes : 0));
  return needs;
}

MemoryNeeds cpu_needs(const RunPlan& plan, int threads_per_rank) {
  const int64_t times = ranks_per_plan(plan);
  MemoryNeeds needs = ranks_on_cpu(plan.ranks, threads_per_rank, times);
  needs.whose = count_ranks(plan.mesh.num_ranks());
  add(needs, kPieces, checkpoint_host_bytes(plan.layout));
  return needs;
}

MemoryNeeds cpu_needs(const RankPlan& rank, const ParameterLayout& layout, int threads) {
  MemoryNeeds needs = ranks_on_cpu({&rank, 1}, threads, 1);
  needs.whose = count_ranks(1);
  add(needs, kPieces, checkpoint_host_bytes(layout));
  return needs;
}

MemoryNeeds staging_needs(const RunPlan& plan) {
  MemoryNeeds needs{.whose = count_ranks(plan.mesh.num_ranks()), .parts = {}};
  for (const RankPlan& rank : plan.ranks) {
    add(needs, kOffloaded, ranks_per_plan(plan) * rank.memory.host_bytes);
  }
  add(needs, kPieces, checkpoint_host_bytes(plan.layout));
  return needs;
}

}  // namespace braid
