#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

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

/// What all sweeps over the same buffers begin with.
struct SweepInput {
  /// A buffer, and where its queue may reuse it.
  struct Release {
    uint32_t end;
    uint32_t buffer;

    friend auto operator<=>(const Release&, const Release&) = default;
  };

  SweepInput(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes);

  std::vector<uint32_t> buffers;               ///< by first task
  std::vector<std::vector<Release>> releases;  ///< by queue, ascending
};

/// `pack_in_program_order` with several options: makes no packing twice. `ranges` and `sizes_bytes`
/// must outlive it.
class Sweeps {
 public:
  Sweeps(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes)
      : ranges_(ranges), sizes_bytes_(sizes_bytes), input_(ranges, sizes_bytes) {}

  const LiveRanges& ranges() const { return ranges_; }
  std::span<const int64_t> sizes_bytes() const { return sizes_bytes_; }
  const Packing& pack(const SweepOptions& options);

 private:
  const LiveRanges& ranges_;
  std::span<const int64_t> sizes_bytes_;
  SweepInput input_;
  std::map<std::pair<int64_t, uint32_t>, Packing> made_;  // by options
};

}  // namespace braid
