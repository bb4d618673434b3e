#pragma once

#include <cstdint>
#include <span>

#include "memory/assign_offsets.h"

namespace braid {

struct SweepOptions {
  /// Bytes that the arena is expected to need: buffers of long life fill it from below, those of
  /// short life from above, and it grows where that does not do.
  int64_t expected_bytes = 0;
  /// Buffers with at most this many tasks between first task and end count as short.
  uint32_t short_life_tasks = 0;
};

/// Places buffers in program order, as an allocator would that sees them come and go: best fit,
/// with free neighbours joined. What is free is kept for each queue apart, because what the tasks
/// of one stream may reuse at some moment, those of another may not yet. Time: O(n queues log n).
Packing pack_in_program_order(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                              const SweepOptions& options);

}  // namespace braid
