#include <fmt/core.h>

#include <algorithm>

#include "base/text.h"
#include "memory/max_live.h"
#include "memory/memory_plan.h"

namespace braid {
namespace {

/// What people call the classes.
const char* class_title(BufferRole role) {
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

int64_t bytes_of(const std::unordered_map<BufferRole, int64_t>& by_role, BufferRole role) {
  const auto found = by_role.find(role);
  return found == by_role.end() ? 0 : found->second;
}

std::string row(std::string_view title, int64_t persistent_bytes, int64_t step_bytes) {
  const auto cell = [](int64_t bytes) { return bytes == 0 ? "-" : format_bytes(bytes); };
  return fmt::format("{:<20}{:>12}{:>12}{:>12}\n", title, cell(persistent_bytes), cell(step_bytes),
                     cell(persistent_bytes + step_bytes));
}

/// The program that needs the largest step arena.
StepPlan largest_step(const MemoryPlan& plan) {
  const auto largest = std::max_element(
      plan.programs.begin(), plan.programs.end(),
      [](const StepPlan& a, const StepPlan& b) { return a.arena_bytes < b.arena_bytes; });
  return largest == plan.programs.end() ? StepPlan{} : *largest;
}

}  // namespace

std::string describe_plan(const MemoryPlan& plan) {
  const StepPlan step = largest_step(plan);
  std::string text =
      fmt::format("{:<20}{:>12}{:>12}{:>12}\n", "memory", "persistent", "step peak", "together");
  for (size_t index = 0; index < kNumBufferRoles; ++index) {
    const auto role = static_cast<BufferRole>(index);
    const int64_t persistent_bytes = bytes_of(plan.persistent_by_role, role);
    const int64_t step_bytes = bytes_of(step.peak_by_role, role);
    if (persistent_bytes + step_bytes > 0) {
      text += row(class_title(role), persistent_bytes, step_bytes);
    }
  }
  if (step.arena_bytes > step.max_live_bytes) {
    text += row("between buffers", 0, step.arena_bytes - step.max_live_bytes);
  }
  const double ratio = step.max_live_bytes == 0 ? 1.0
                                                : static_cast<double>(step.arena_bytes) /
                                                      static_cast<double>(step.max_live_bytes);
  text += fmt::format("peak {} = {} persistent + {} in a step ({:.3f} x the bytes live at once)\n",
                      format_bytes(plan.peak_bytes()), format_bytes(plan.persistent_bytes),
                      format_bytes(plan.step_bytes), ratio);
  return text;
}

}  // namespace braid
