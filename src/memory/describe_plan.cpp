#include <fmt/core.h>

#include "base/text.h"
#include "memory/memory_classes.h"
#include "memory/memory_plan.h"

namespace braid {
namespace {

std::string row(std::string_view title, int64_t persistent_bytes, int64_t step_bytes) {
  const auto cell = [](int64_t bytes) { return bytes == 0 ? "-" : format_bytes(bytes); };
  return fmt::format("{:<20}{:>12}{:>12}{:>12}\n", title, cell(persistent_bytes), cell(step_bytes),
                     cell(persistent_bytes + step_bytes));
}

}  // namespace

std::string describe_plan(const MemoryPlan& plan) {
  std::string text =
      fmt::format("{:<20}{:>12}{:>12}{:>12}\n", "memory", "persistent", "step peak", "together");
  for (const MemoryClass& found : memory_classes(plan)) {
    text += row(found.title, found.persistent_bytes, found.step_bytes);
  }
  const StepPlan* const largest = largest_step(plan);
  const double ratio = largest == nullptr || largest->max_live_bytes == 0
                           ? 1.0
                           : static_cast<double>(largest->arena_bytes) /
                                 static_cast<double>(largest->max_live_bytes);
  text += fmt::format("peak {} = {} persistent + {} in a step ({:.3f} x the bytes live at once)\n",
                      format_bytes(plan.peak_bytes()), format_bytes(plan.persistent_bytes),
                      format_bytes(plan.step_bytes), ratio);
  if (plan.host_bytes > 0) {
    text += fmt::format("host {} in a step, for activations placed there\n",
                        format_bytes(plan.host_bytes));
  }
  return text;
}

}  // namespace braid
