#include "plan/memory_needs.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "backends/cuda/device_needs.h"
#include "base/errors.h"
#include "base/text.h"
#include "memory/memory_classes.h"

namespace braid {

int64_t MemoryNeeds::bytes() const {
  int64_t sum = 0;
  for (const Part& part : parts) {
    sum += part.bytes;
  }
  return sum;
}

void MemoryNeeds::add(std::string_view what, int64_t bytes) {
  if (bytes == 0) {
    return;
  }
  const auto found = std::ranges::find(parts, what, &Part::what);
  if (found == parts.end()) {
    parts.push_back({.what = std::string(what), .bytes = bytes});
  } else {
    found->bytes += bytes;
  }
}

void MemoryNeeds::add(const MemoryPlan& memory, int64_t times) {
  for (const MemoryClass& found : memory_classes(memory)) {
    add(found.title, times * found.bytes());
  }
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
  needs.add(rank.memory);
  const CudaNeeds beside = cuda_needs(rank.programs, options.repeatable);
  needs.add(kKernelScratch, beside.scratch_bytes);
  needs.add("CUDA", beside.driver_bytes + (options.with_context ? kCudaContextBytes : 0));
  needs.add("NCCL", beside.nccl_bytes());
  return needs;
}

std::string describe_nccl_needs(const RankPlan& rank) {
  constexpr size_t kMaxShownRanks = 8;
  const std::vector<NcclNeed> needs = nccl_needs(rank.programs);
  int64_t sum_bytes = 0;
  std::vector<std::string> texts;
  for (const NcclNeed& need : needs) {
    sum_bytes += need.bytes;
    texts.push_back(
        fmt::format("{} {}",
                    need.key.ranks.size() <= kMaxShownRanks
                        ? describe_key(need.key)
                        : fmt::format("{} of {} ranks", need.key.name, need.key.ranks.size()),
                    format_bytes(need.bytes)));
  }
  return needs.empty()
             ? ""
             : fmt::format("nccl      about {} of {} communicator{}: {}\n", format_bytes(sum_bytes),
                           needs.size(), needs.size() == 1 ? "" : "s", join(texts, "; "));
}

}  // namespace braid
