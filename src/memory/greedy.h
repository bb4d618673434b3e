#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/assign_offsets.h"

namespace braid {

/// The property by which the greedy packer orders buffers.
enum class GreedyOrder : uint8_t {
  kSize,      ///< largest first: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
              ///< Net Inference", 2020, "greedy by size"
  kArea,      ///< largest size x lifetime first
  kLifetime,  ///< longest lifetime first: nested lifetimes, such as those of activations, stack
              ///< without gaps
};

/// Places buffers one at a time into the smallest gap among the placed buffers that interfere with
/// it; the lowest offset wins if gaps are equal. Time: O(sum over buffers of log n + buffers with
/// overlapping lifetimes).
Packing pack_greedily(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                      GreedyOrder order);

/// The buffers that take memory, by first task.
std::vector<uint32_t> buffers_by_first_task(const LiveRanges& ranges,
                                            std::span<const int64_t> sizes_bytes);

/// The number of pairs of buffers with overlapping lifetimes: the cost of `pack_greedily`.
int64_t count_overlapping_pairs(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes);

}  // namespace braid
