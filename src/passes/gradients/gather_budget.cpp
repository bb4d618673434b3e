#include "passes/gradients/gather_budget.h"

#include <algorithm>
#include <limits>

namespace braid {
namespace {

/// A unit that lives beside so many later ones is held: a tied embedding.
constexpr size_t kManyUnits = 3;

/// Addresses of a unit, and until when they are taken.
struct Allocation {
  int64_t begin = 0;
  int64_t end = 0;
  uint32_t free_at = 0;
};

bool overlap(const Allocation& a, const Allocation& b) {
  return a.begin < b.end && b.begin < a.end;
}

class BudgetAllocator {
 public:
  BudgetAllocator(std::span<const BudgetedUnit> units, int64_t budget_bytes)
      : units_(units),
        budget_bytes_(budget_bytes),
        allocations_(units.size()),
        owner_(units.size()) {}

  BudgetedPlaces run() {
    BudgetedPlaces result;
    uint32_t previous = 0;
    for (size_t i = 0; i < units_.size(); ++i) {
      const BudgetedUnit& unit = units_[i];
      owner_[i] = i;
      BudgetedPlace place{
          .place = std::clamp(unit.earliest, std::min(previous, unit.task), unit.task), .held = {}};
      if (unit.bytes > 0) {
        if (const std::optional<size_t> held = held_for(i)) {
          hold(i, *held);
          place.held = held;
          result.places.push_back(place);
          continue;
        }
        place.place = allocate(i, std::max(place.place, previous));
        result.planned_bytes = std::max(result.planned_bytes, allocations_[i].end);
      }
      place.place = std::min(std::max(place.place, previous), unit.task);
      previous = place.place;
      result.places.push_back(place);
    }
    return result;
  }

 private:
  /// The unit whose addresses can keep the data of this one until its last use.
  std::optional<size_t> held_for(size_t index) const {
    const std::optional<size_t> same = units_[index].same;
    if (!same) {
      return std::nullopt;
    }
    const size_t owner = owner_[*same];
    const Allocation& kept = allocations_[owner];
    const bool is_taken =
        kept.end > budget_bytes_ ||
        std::any_of(allocations_.begin() + static_cast<ptrdiff_t>(owner) + 1,
                    allocations_.begin() + static_cast<ptrdiff_t>(index),
                    [&](const Allocation& later) { return overlap(kept, later); });
    return is_taken ? std::nullopt : std::optional(owner);
  }

  void hold(size_t index, size_t owner) {
    owner_[index] = owner;
    Allocation& kept = allocations_[owner];
    const bool was_live = std::ranges::find(live_, owner) != live_.end();
    kept.free_at = std::max(kept.free_at, units_[index].end);
    if (!was_live) {
      live_.push_back(owner);
    }
  }

  /// The first place from `place` on at which there is room; that of the task if there is none.
  uint32_t allocate(size_t index, uint32_t place) {
    const BudgetedUnit& unit = units_[index];
    for (place = std::min(place, unit.task);; place = next_end(place, unit.task)) {
      std::erase_if(live_, [&](size_t it) { return allocations_[it].free_at <= place; });
      std::vector<Allocation> live = live_at(place);
      std::vector<int64_t> rooms = rooms_for(unit.bytes, live);
      if (rooms.empty() && place == unit.task) {
        rooms.push_back(live.empty() ? 0 : top_of(live));  // above the budget
      }
      if (!rooms.empty()) {
        allocations_[index] = best_of(index, rooms, live, place);
        live_.push_back(index);
        return place;
      }
    }
  }

  /// Sorted by address.
  std::vector<Allocation> live_at(uint32_t place) const {
    std::vector<Allocation> live;
    for (const size_t it : live_) {
      if (allocations_[it].free_at > place) {
        live.push_back(allocations_[it]);
      }
    }
    std::ranges::sort(live, {}, &Allocation::begin);
    return live;
  }

  uint32_t next_end(uint32_t place, uint32_t task) const {
    uint32_t next = task;
    for (const size_t it : live_) {
      next = allocations_[it].free_at > place ? std::min(next, allocations_[it].free_at) : next;
    }
    return next;
  }

  static int64_t top_of(const std::vector<Allocation>& live) {
    return std::ranges::max_element(live, {}, &Allocation::end)->end;
  }

  /// Both ends of each free piece that is large enough, ascending.
  std::vector<int64_t> rooms_for(int64_t bytes, const std::vector<Allocation>& live) const {
    std::vector<int64_t> rooms;
    int64_t free = 0;
    const auto add = [&](int64_t end) {
      if (end - free >= bytes) {
        rooms.push_back(free);
        rooms.push_back(end - bytes);
      }
    };
    for (const Allocation& next : live) {
      add(std::min(next.begin, budget_bytes_));
      free = std::max(free, next.end);
    }
    add(budget_bytes_);
    return rooms;
  }

  /// Those addresses beside which the next unit can start first. Of equal ones the lowest, but the
  /// highest for a unit that lives long: so it cuts no room in two.
  Allocation best_of(size_t index, std::vector<int64_t> rooms, const std::vector<Allocation>& live,
                     uint32_t place) const {
    const BudgetedUnit& unit = units_[index];
    if (is_long(index)) {
      std::ranges::reverse(rooms);
    }
    const auto at = [&](int64_t begin) { return Allocation{begin, begin + unit.bytes, unit.end}; };
    if (rooms.size() == 1 || index + 1 == units_.size()) {
      return at(rooms.front());
    }
    Allocation best;
    uint32_t best_start = std::numeric_limits<uint32_t>::max();
    for (const int64_t begin : rooms) {
      if (const uint32_t start = start_of_next(index + 1, at(begin), live, place);
          start < best_start) {
        best = at(begin);
        best_start = start;
      }
    }
    return best;
  }

  /// Where unit `index` could start if `taken` were live, too.
  uint32_t start_of_next(size_t index, const Allocation& taken, std::vector<Allocation> live,
                         uint32_t place) const {
    live.push_back(taken);
    std::ranges::sort(live, {}, &Allocation::begin);
    while (place < units_[index].task && !live.empty() &&
           rooms_for(units_[index].bytes, live).empty()) {
      place = std::ranges::min_element(live, {}, &Allocation::free_at)->free_at;
      std::erase_if(live, [&](const Allocation& it) { return it.free_at <= place; });
    }
    return std::min(place, units_[index].task);
  }

  bool is_long(size_t index) const {
    return index + kManyUnits < units_.size() &&
           units_[index + kManyUnits].task < units_[index].end;
  }

  std::span<const BudgetedUnit> units_;
  int64_t budget_bytes_;
  std::vector<Allocation> allocations_;  // by unit; empty: it has none
  std::vector<size_t> owner_;            // by unit: the one at whose addresses its data is
  std::vector<size_t> live_;             // units with addresses at the last place
};

}  // namespace

BudgetedPlaces place_within_budget(std::span<const BudgetedUnit> units, int64_t budget_bytes) {
  return BudgetAllocator(units, budget_bytes).run();
}

}  // namespace braid
