#include "plan/memory_needs.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "backends/registry/registry.h"
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

MemoryNeeds rank_needs(const Backend& backend, const RankPlan& rank,
                       const DeviceNeedsOptions& options) {
  MemoryNeeds needs{.whose = fmt::format("rank {}", rank.programs.front().rank), .parts = {}};
  needs.add(rank.memory);
  for (const DeviceNeed& need : backend.needs(rank.programs, options)) {
    needs.add(need.what, need.bytes);
  }
  return needs;
}

int64_t rank_bytes(const DeviceSpec& device, const RankPlan& rank, bool repeatable) {
  return device.is_host ? rank.memory.peak_bytes()
                        : rank_needs(backend_named(device.backend), rank,
                                     {.repeatable = repeatable, .with_context = true})
                              .bytes();
}

}  // namespace braid
