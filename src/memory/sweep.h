#pragma once

#include <cstdint>
#include <span>

#include "memory/assign_offsets.h"

namespace braid {

struct SweepOptions {
  /// The expected size of the arena: long-lived buffers fill it from below, short-lived ones from
  /// above. The arena grows if this is not enough.
  int64_t expected_bytes = 0;
  /// Buffers with at most this many tasks between first task and end are short-lived.
  uint32_t short_life_tasks = 0;
};

/// Places buffers in program order, like an allocator at run time: best fit, with free neighbours
/// joined. Free blocks are kept per queue, because the tasks of one stream may reuse a block
/// earlier than those of another. Time: O(n queues log n).
Packing pack_in_program_order(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                              const SweepOptions& options);

}  // namespace braid
