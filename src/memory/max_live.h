#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "memory/live_ranges.h"

namespace braid {

inline constexpr size_t kNumBufferRoles = static_cast<size_t>(BufferRole::kIo) + 1;

/// Buffers that interfere with each other, by role: those that are live at one moment of a possible
/// order of execution, or of a clique.
struct MaxLive {
  int64_t bytes = 0;
  std::array<int64_t, kNumBufferRoles> by_role{};  ///< by BufferRole
};

/// A lower bound for every plan: buffers that are live at the same moment of one possible order of
/// execution interfere with each other. Considers the program's order, and the orders in which all
/// streams except the busiest run as late and as early as possible. `sizes_bytes` is by BufferId.
MaxLive find_max_live(const Program& program, const TaskOrder& order, const LiveRanges& ranges,
                      std::span<const int64_t> sizes_bytes);

/// These buffers, whenever they live.
MaxLive live_together(const Program& program, std::span<const uint32_t> buffers,
                      std::span<const int64_t> sizes_bytes);

}  // namespace braid
