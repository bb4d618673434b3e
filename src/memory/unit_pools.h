#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "ir/program.h"

namespace braid {

/// A step buffer that holds a bucket of a unit: its parameters of one domain and dtype, from their
/// gather to their last use, or their gradient. A step has a buffer for each time that it gathers
/// or reduces a unit.
struct UnitUse {
  BufferId buffer;
  uint32_t unit = 0;
  uint32_t bucket = 0;  ///< equal buckets of different units need not have equal numbers
};

/// What buffers of units take if nothing else shares bytes with them.
struct UnitPools {
  /// The arena of `plan_memory` if a program had no other buffers. (In that of a step they share
  /// bytes with activations.)
  int64_t planned_bytes = 0;
  int64_t live_bytes = 0;      ///< lower bound of any plan: largest sum of buffers that interfere
  int64_t max_pool_bytes = 0;  ///< copies of one set of slots for all units
  int64_t max_pool_copies = 0;
  int64_t kind_pools_bytes = 0;  ///< copies of a set of slots for each kind of unit
  int64_t own_bytes = 0;         ///< a buffer for each bucket of each unit

  friend bool operator==(const UnitPools&, const UnitPools&) = default;
};

/// Of the buffers of one kind in a program.
struct UnitMemory {
  std::string_view what;  ///< "gathered weights", "unreduced gradients"
  UnitPools pools;
};

/// Compares braid's plan of the buffers in `uses` with pools of fixed buffers, which take turns.
///
/// MaxPool (Megatron-FSDP, PR 5462): the buckets of a unit, sorted by size, are the ranks of its
/// dtype; a slot per rank, as large as the largest bucket of that rank, holds it for any unit. A
/// pool per kind (Megatron-FSDP's FixedPool, for every kind instead of the most frequent one):
/// units whose buckets have equal dtypes and sizes are a kind. Both pools have two copies there,
/// and an allocation fails where a step needs a third; here they have as many as are live at once,
/// at least two (one for a kind of one unit).
///
/// Sizes are those of the plan, rounded up to its alignment. Requires: events (`insert_events`),
/// and no persistent or host buffers in `uses`. O(pairs of uses that live at once).
UnitPools compare_unit_pools(const Program& program, std::span<const UnitUse> uses);

/// `UnitPools::live_bytes` alone, without a plan. Same requirements; near-linear time.
int64_t most_unit_bytes(const Program& program, std::span<const UnitUse> uses);

}  // namespace braid
