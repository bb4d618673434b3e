#include "memory/memory_classes.h"

#include <algorithm>
#include <unordered_map>

#include "memory/max_live.h"

namespace braid {
namespace {

int64_t bytes_of(const std::unordered_map<BufferRole, int64_t>& by_role, BufferRole role) {
  const auto found = by_role.find(role);
  return found == by_role.end() ? 0 : found->second;
}

}  // namespace

std::string_view class_title(BufferRole role) {
  switch (role) {
    case BufferRole::kParam:
      return "weights";
    case BufferRole::kMainWeight:
      return "main weights";
    case BufferRole::kGrad:
      return "gradients";
    case BufferRole::kMainGrad:
      return "main gradients";
    case BufferRole::kOptimizerState:
      return "optimizer state";
    case BufferRole::kActivation:
      return "activations";
    case BufferRole::kGathered:
      return "gathered";
    case BufferRole::kScratch:
      return "scratch";
    case BufferRole::kIo:
      return "inputs and outputs";
  }
  return "unknown";
}

const StepPlan* largest_step(const MemoryPlan& plan) {
  const auto largest = std::max_element(
      plan.programs.begin(), plan.programs.end(),
      [](const StepPlan& a, const StepPlan& b) { return a.arena_bytes < b.arena_bytes; });
  return largest == plan.programs.end() ? nullptr : &*largest;
}

std::vector<MemoryClass> memory_classes(const MemoryPlan& plan) {
  const StepPlan* const largest = largest_step(plan);
  const StepPlan step = largest == nullptr ? StepPlan{} : *largest;
  std::vector<MemoryClass> classes;
  for (size_t index = 0; index < kNumBufferRoles; ++index) {
    const auto role = static_cast<BufferRole>(index);
    const MemoryClass found{.title = class_title(role),
                            .persistent_bytes = bytes_of(plan.persistent_by_role, role),
                            .step_bytes = bytes_of(step.peak_by_role, role)};
    if (found.bytes() > 0) {
      classes.push_back(found);
    }
  }
  if (step.arena_bytes > step.max_live_bytes) {
    classes.push_back({.title = kBetweenBuffers,
                       .persistent_bytes = 0,
                       .step_bytes = step.arena_bytes - step.max_live_bytes});
  }
  return classes;
}

}  // namespace braid
