#include "memory/greedy.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace braid {

std::vector<uint32_t> buffers_by_first_task(const LiveRanges& ranges,
                                            std::span<const int64_t> sizes_bytes) {
  std::vector<uint32_t> buffers;
  for (uint32_t buffer = 0; buffer < ranges.num_buffers(); ++buffer) {
    if (ranges.is_used(buffer) && sizes_bytes[buffer] > 0) {
      buffers.push_back(buffer);
    }
  }
  std::stable_sort(buffers.begin(), buffers.end(), [&](uint32_t a, uint32_t b) {
    return ranges.first_task(a) < ranges.first_task(b);
  });
  return buffers;
}

namespace {

/// Finds the placed buffers whose [first_task, end_task) overlaps a given one: a segment tree over
/// buffers by first task that keeps the largest end of each part.
class PlacedIntervals {
 public:
  PlacedIntervals(const LiveRanges& ranges, std::span<const uint32_t> by_first_task)
      : ranges_(ranges),
        by_first_task_(by_first_task),
        num_leaves_(std::bit_ceil(std::max<size_t>(by_first_task.size(), 1))),
        largest_end_(2 * num_leaves_, 0) {}

  void place(size_t rank) {
    const uint32_t end = ranges_.end_task(by_first_task_[rank]);
    for (size_t node = num_leaves_ + rank; node > 0; node /= 2) {
      largest_end_[node] = std::max(largest_end_[node], end);
    }
  }

  /// Appends all placed buffers that may interfere with `buffer`.
  void find(uint32_t buffer, std::vector<uint32_t>& found) const {
    const uint32_t end = ranges_.end_task(buffer);
    const auto first_later =
        std::partition_point(by_first_task_.begin(), by_first_task_.end(),
                             [&](uint32_t other) { return ranges_.first_task(other) < end; });
    descend(1, num_leaves_, static_cast<size_t>(first_later - by_first_task_.begin()),
            ranges_.first_task(buffer), found);
  }

 private:
  /// Leaves of `node` below `num_candidates` that end after `begin`.
  void descend(size_t node, size_t width, size_t num_candidates, uint32_t begin,
               std::vector<uint32_t>& found) const {
    if (largest_end_[node] <= begin || num_candidates == 0) {
      return;
    }
    if (width == 1) {
      found.push_back(by_first_task_[node - num_leaves_]);
      return;
    }
    const size_t half = width / 2;
    descend(2 * node, half, std::min(num_candidates, half), begin, found);
    descend(2 * node + 1, half, num_candidates > half ? num_candidates - half : 0, begin, found);
  }

  const LiveRanges& ranges_;
  std::span<const uint32_t> by_first_task_;
  size_t num_leaves_;
  std::vector<uint32_t> largest_end_;
};

/// Ranks (positions in `by_first_task`) in the order in which to place them.
std::vector<uint32_t> placing_order(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                                    std::span<const uint32_t> by_first_task, GreedyOrder order) {
  std::vector<double> weights;
  std::vector<uint32_t> ranks;
  for (const uint32_t buffer : by_first_task) {
    const auto size = static_cast<double>(sizes_bytes[buffer]);
    const auto lifetime = static_cast<double>(ranges.end_task(buffer) - ranges.first_task(buffer));
    ranks.push_back(static_cast<uint32_t>(ranks.size()));
    weights.push_back(order == GreedyOrder::kSize       ? size
                      : order == GreedyOrder::kLifetime ? lifetime
                                                        : size * lifetime);
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](uint32_t a, uint32_t b) { return weights[a] > weights[b]; });
  return ranks;
}

struct Block {
  int64_t begin;
  int64_t end;
};

/// Offset of the smallest gap between `blocks` of at least `size_bytes`; else the end of the last.
int64_t best_gap(std::vector<Block>& blocks, int64_t size_bytes) {
  std::sort(blocks.begin(), blocks.end(),
            [](const Block& a, const Block& b) { return a.begin < b.begin; });
  int64_t best_offset = -1;
  int64_t best_bytes = 0;
  int64_t reached = 0;
  for (const Block& block : blocks) {
    const int64_t gap = block.begin - reached;
    if (gap >= size_bytes && (best_offset < 0 || gap < best_bytes)) {
      best_offset = reached;
      best_bytes = gap;
    }
    reached = std::max(reached, block.end);
  }
  return best_offset < 0 ? reached : best_offset;
}

/// Places buffers in the order of `ranks`, which are positions in `by_first_task`.
Packing pack_in_order(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                      std::span<const uint32_t> by_first_task, std::span<const uint32_t> ranks) {
  PlacedIntervals placed(ranges, by_first_task);
  Packing packing;
  packing.offset_bytes.assign(ranges.num_buffers(), 0);
  std::vector<uint32_t> candidates;
  std::vector<Block> blocks;
  for (const uint32_t rank : ranks) {
    const uint32_t buffer = by_first_task[rank];
    candidates.clear();
    blocks.clear();
    placed.find(buffer, candidates);
    for (const uint32_t other : candidates) {
      if (ranges.interfere(buffer, other)) {
        const int64_t begin = packing.offset_bytes[other];
        blocks.push_back({begin, begin + sizes_bytes[other]});
      }
    }
    const int64_t offset = best_gap(blocks, sizes_bytes[buffer]);
    packing.offset_bytes[buffer] = offset;
    packing.arena_bytes = std::max(packing.arena_bytes, offset + sizes_bytes[buffer]);
    placed.place(rank);
  }
  return packing;
}

}  // namespace

Packing pack_greedily(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                      GreedyOrder order) {
  const std::vector<uint32_t> by_first_task = buffers_by_first_task(ranges, sizes_bytes);
  return pack_in_order(ranges, sizes_bytes, by_first_task,
                       placing_order(ranges, sizes_bytes, by_first_task, order));
}

int64_t count_overlapping_pairs(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes) {
  std::vector<uint32_t> starts;
  std::vector<uint32_t> ends;
  for (const uint32_t buffer : buffers_by_first_task(ranges, sizes_bytes)) {
    starts.push_back(ranges.first_task(buffer));
    ends.push_back(ranges.end_task(buffer));
  }
  std::sort(ends.begin(), ends.end());
  int64_t num_pairs = 0;
  size_t num_ended = 0;
  for (size_t started = 0; started < starts.size(); ++started) {
    while (ends[num_ended] <= starts[started]) {
      ++num_ended;
    }
    num_pairs += static_cast<int64_t>(started - num_ended);
  }
  return num_pairs;
}

}  // namespace braid
