#include "memory/unit_pools.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "memory/memory_plan.h"
#include "memory/pack_buffers.h"

namespace braid {
namespace {

/// Where a pool keeps a bucket: the n-th largest of its unit and dtype.
struct Slot {
  DType dtype = DType::kF32;
  uint32_t rank = 0;

  friend auto operator<=>(const Slot&, const Slot&) = default;
};

struct Bucket {
  uint32_t number = 0;
  DType dtype = DType::kF32;
  int64_t bytes = 0;
};

/// Bytes by slot.
using Slots = std::map<Slot, int64_t>;

int64_t sum(const Slots& slots) {
  int64_t bytes = 0;
  for (const auto& [slot, slot_bytes] : slots) {
    bytes += slot_bytes;
  }
  return bytes;
}

/// The buckets of all units in their slots.
class Units {
 public:
  Units(const Program& program, std::span<const UnitUse> uses) {
    std::map<uint32_t, std::map<uint32_t, Bucket>> units;
    for (const UnitUse& use : uses) {
      const Buffer& buffer = program.buffers.at(use.buffer.index());
      const Bucket bucket{use.bucket, buffer.dtype, aligned_bytes(buffer)};
      const Bucket& known = units[use.unit].emplace(use.bucket, bucket).first->second;
      check(known.bytes == bucket.bytes && known.dtype == bucket.dtype,
            "buffer {} holds a unit that has another size or dtype elsewhere", buffer.name);
    }
    for (const auto& [unit, buckets] : units) {
      add(unit, buckets);
    }
  }

  const std::map<uint32_t, Slots>& slots() const { return slots_; }
  Slot slot_of(const UnitUse& use) const { return slot_of_.at({use.unit, use.bucket}); }

 private:
  void add(uint32_t unit, const std::map<uint32_t, Bucket>& buckets) {
    std::vector<Bucket> sorted;
    for (const auto& [number, bucket] : buckets) {
      sorted.push_back(bucket);
    }
    std::ranges::stable_sort(sorted, std::ranges::greater{}, &Bucket::bytes);
    std::map<DType, uint32_t> num_ranks;
    for (const Bucket& bucket : sorted) {
      const Slot slot{bucket.dtype, num_ranks[bucket.dtype]++};
      slots_[unit][slot] = bucket.bytes;
      slot_of_[{unit, bucket.number}] = slot;
    }
  }

  std::map<uint32_t, Slots> slots_;                        // by unit
  std::map<std::pair<uint32_t, uint32_t>, Slot> slot_of_;  // by unit and bucket
};

/// Counts and packs some of the buffers of a program, as if there were no others.
class LiveUses {
 public:
  explicit LiveUses(const Program& program)
      : program_(program), order_(program), ranges_(program, order_) {}

  /// The most of these buffers that are live at once.
  int64_t most_at_once(std::span<const BufferId> buffers) const {
    return find_max_live(program_, order_, ranges_,
                         sizes(buffers, [](const Buffer&) { return int64_t{1}; }))
        .bytes;
  }

  int64_t most_bytes(std::span<const BufferId> buffers) const {
    return find_max_live(program_, order_, ranges_, sizes(buffers, aligned_bytes)).bytes;
  }

  BoundedPacking pack(std::span<const BufferId> buffers) const {
    return pack_buffers(program_, order_, ranges_, sizes(buffers, aligned_bytes), kOffsetSearchNs);
  }

 private:
  template <class SizeOf>
  std::vector<int64_t> sizes(std::span<const BufferId> buffers, const SizeOf& size_of) const {
    std::vector<int64_t> sizes(program_.buffers.size(), 0);
    for (const BufferId buffer : buffers) {
      sizes[buffer.index()] = size_of(program_.buffers[buffer.index()]);
    }
    return sizes;
  }

  const Program& program_;
  TaskOrder order_;
  LiveRanges ranges_;
};

/// Copies of the slots that these units share: as many as any slot needs, at least two if there are
/// two units.
int64_t num_copies(const LiveUses& live, const Units& units, std::span<const UnitUse> uses,
                   const std::set<uint32_t>& sharing) {
  std::map<Slot, std::vector<BufferId>> by_slot;
  for (const UnitUse& use : uses) {
    if (sharing.contains(use.unit)) {
      by_slot[units.slot_of(use)].push_back(use.buffer);
    }
  }
  int64_t copies = std::min<int64_t>(2, std::ssize(sharing));
  for (const auto& [slot, buffers] : by_slot) {
    copies = std::max(copies, live.most_at_once(buffers));
  }
  return copies;
}

void add_max_pool(const LiveUses& live, const Units& units, std::span<const UnitUse> uses,
                  UnitPools& pools) {
  Slots largest;
  std::set<uint32_t> all;
  for (const auto& [unit, slots] : units.slots()) {
    all.insert(unit);
    for (const auto& [slot, bytes] : slots) {
      largest[slot] = std::max(largest[slot], bytes);
    }
  }
  pools.max_pool_copies = num_copies(live, units, uses, all);
  pools.max_pool_bytes = pools.max_pool_copies * sum(largest);
}

void add_kind_pools(const LiveUses& live, const Units& units, std::span<const UnitUse> uses,
                    UnitPools& pools) {
  std::map<Slots, std::set<uint32_t>> kinds;
  for (const auto& [unit, slots] : units.slots()) {
    kinds[slots].insert(unit);
  }
  for (const auto& [slots, of_kind] : kinds) {
    pools.kind_pools_bytes += num_copies(live, units, uses, of_kind) * sum(slots);
  }
}

std::vector<BufferId> buffers_of(std::span<const UnitUse> uses) {
  std::vector<BufferId> buffers;
  for (const UnitUse& use : uses) {
    buffers.push_back(use.buffer);
  }
  return buffers;
}

}  // namespace

int64_t most_unit_bytes(const Program& program, std::span<const UnitUse> uses) {
  return uses.empty() ? 0 : LiveUses(program).most_bytes(buffers_of(uses));
}

UnitPools compare_unit_pools(const Program& program, std::span<const UnitUse> uses) {
  UnitPools pools;
  if (uses.empty()) {
    return pools;
  }
  const Units units(program, uses);
  const LiveUses live(program);
  const BoundedPacking packed = live.pack(buffers_of(uses));
  pools.planned_bytes = packed.packing.arena_bytes;
  pools.live_bytes = packed.bound.bytes;
  add_max_pool(live, units, uses, pools);
  add_kind_pools(live, units, uses, pools);
  for (const auto& [unit, slots] : units.slots()) {
    pools.own_bytes += sum(slots);
  }
  return pools;
}

}  // namespace braid
