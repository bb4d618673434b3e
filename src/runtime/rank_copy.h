#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backends/executor.h"
#include "state/state_map.h"

namespace braid {

/// Elements of a buffer of StateMap::buffers.
struct CopiedRange {
  size_t buffer = 0;
  int64_t begin = 0;
  int64_t num_elems = 0;

  int64_t end() const { return begin + num_elems; }
};

/// Sorts ranges and joins those that touch or overlap.
std::vector<CopiedRange> joined_ranges(std::vector<CopiedRange> ranges);

/// A copy in host memory of parts of a rank's buffers, in their own dtypes. It outlives the steps
/// that change the buffers.
class RankCopy {
 public:
  /// Allocates the copy as a `host_block` of the executor, which must outlive it, and touches each
  /// page. `ranges` as `joined_ranges` returns them. Throws DeviceError if there is no memory.
  RankCopy(const StateMap& map, std::vector<CopiedRange> ranges, Executor& executor);

  /// Reads the buffers, while no step is in flight.
  void take();
  /// The copied elements [begin, begin + out.size()) of a buffer. Thread-safe after `take`. Throws
  /// InternalError for elements that are not copied.
  void read(size_t buffer, int64_t begin, std::span<float> out) const;
  int64_t size_bytes() const { return static_cast<int64_t>(block_.bytes.size()); }

 private:
  std::span<std::byte> bytes_of(size_t range) const;

  const StateMap& map_;
  std::vector<CopiedRange> ranges_;
  std::vector<int64_t> offsets_bytes_;  // in the block; parallel to ranges_
  Executor& executor_;
  HostBlock block_;
};

}  // namespace braid
