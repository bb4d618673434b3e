#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/program.h"
#include "memory/memory_plan.h"

namespace braid {

/// The part of an arena beyond the bytes that are live at once.
inline constexpr std::string_view kBetweenBuffers = "between buffers";

/// The name of a class for people: "main weights".
std::string_view class_title(BufferRole role);

/// Bytes that a plan assigns to one class of buffers.
struct MemoryClass {
  std::string_view title;
  int64_t persistent_bytes = 0;
  int64_t step_bytes = 0;  ///< at the peak of the program with the largest step arena

  int64_t bytes() const { return persistent_bytes + step_bytes; }
};

/// The program that needs the largest step arena; null if there is none.
const StepPlan* largest_step(const MemoryPlan& plan);

/// Device memory of a plan by class, in the order of BufferRole, without empty classes;
/// kBetweenBuffers is last. The sum is `plan.peak_bytes()`.
std::vector<MemoryClass> memory_classes(const MemoryPlan& plan);

}  // namespace braid
