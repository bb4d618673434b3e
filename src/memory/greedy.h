#pragma once

#include <cstdint>
#include <span>

#include "memory/assign_offsets.h"

namespace braid {

/// What the greedy packer places first.
enum class GreedyOrder : uint8_t {
  kSize,      ///< largest first: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
              ///< Net Inference", 2020, "greedy by size"
  kArea,      ///< largest size x lifetime first
  kLifetime,  ///< longest lifetime first: nested lifetimes, as of activations, stack without gaps
};

/// Places one buffer after the other into the smallest gap among the placed buffers that interfere
/// with it, lowest offset first where gaps are equal. Time: O(sum over buffers of log n + buffers
/// with overlapping lifetimes).
Packing pack_greedily(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                      GreedyOrder order);

/// `num_rounds` (at least 1) of greedy packing, at most, until `target_bytes` is reached; the best
/// of them. From round to round buffers that ended above the target move towards the front of the
/// order, to half their place: squeaky wheel optimization, Joslin and Clements, JAIR 1999.
Packing pack_in_rounds(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                       GreedyOrder first_order, int64_t target_bytes, int64_t num_rounds);

/// How many pairs of buffers have overlapping lifetimes: what `pack_greedily` costs.
int64_t count_overlapping_pairs(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes);

}  // namespace braid
