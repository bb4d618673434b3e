#pragma once

#include <cstdint>
#include <span>

#include "memory/assign_offsets.h"

namespace braid {

/// Runs up to `num_rounds` (at least 1) rounds of first-fit packing until one reaches
/// `target_bytes`, and returns the best packing. The first round places the buffers that live at
/// the moment when most bytes do, then the others by their distance from it: they find the gaps
/// that those before them leave. After each round, buffers that ended above the target move to a
/// random earlier place in the order (squeaky wheel optimization, Joslin and Clements, JAIR 1999,
/// with random moves). Every 32 rounds the search starts again from the first order. Equal input
/// gives equal packings. Time: `rounds_setup_ns`, and `round_ns` per round; memory: n * n / 8
/// bytes.
Packing pack_in_rounds(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                       int64_t target_bytes, int64_t num_rounds);

/// Approximate costs of `pack_in_rounds` on a core of 3 GHz.
int64_t rounds_setup_ns(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes);
int64_t round_ns(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes);

}  // namespace braid
