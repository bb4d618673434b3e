#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/errors.h"
#include "base/worker_pool.h"
#include "parallel/parameter_layout.h"

namespace braid {

/// Fills elements [begin, begin + out.size()) of a unit's flat array, shared among `workers`.
/// `fill(parameter, first, part)` gets each run of elements of a parameter in this range, where
/// `first` counts from the parameter's own beginning; all other elements become 0. Several threads
/// call `fill` at once. Throws InternalError for a range outside the unit.
template <class Fill>
void fill_unit_range(const ParameterLayout& layout, size_t unit, int64_t begin,
                     std::span<float> out, WorkerPool& workers, const Fill& fill) {
  constexpr int64_t kGrainElems = 1 << 14;  // far more work than handing it to a thread
  const ParameterUnit& facts = layout.units.at(unit);
  const auto count = static_cast<int64_t>(out.size());
  check(begin >= 0 && begin + count <= facts.num_elems,
        "{} elements from {} are outside unit {} of {}", count, begin, facts.name, facts.num_elems);
  workers.run(count, kGrainElems, [&](int, int64_t from, int64_t to) {
    std::fill(out.begin() + from, out.begin() + to, 0.0f);
    for (const size_t index : facts.slots) {
      const ParameterSlot& slot = layout.slots[index];
      const int64_t first = std::max(slot.begin, begin + from);
      const int64_t last = std::min(slot.end, begin + to);
      if (first < last) {
        fill(layout.parameters[slot.parameter], first - slot.begin,
             out.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(last - first)));
      }
    }
  });
}

}  // namespace braid
