#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace braid {

/// A unit of weights that is gathered, with places in program order: in front of the task of that
/// number.
struct BudgetedUnit {
  uint32_t task = 0;      ///< place of its gathers in the program: they start there at the latest
  uint32_t earliest = 0;  ///< the first place at which they may start
  uint32_t end = 0;       ///< behind the last task that reads what is gathered
  int64_t bytes = 0;      ///< of its buffers; 0: weights that ranks hold whole anyway
  std::optional<size_t> same;  ///< the last unit before it that gathers the same data
};

/// Where the gathers of a unit start.
struct BudgetedPlace {
  uint32_t place = 0;
  /// The unit whose buffers still hold the data, so that these gathers are not needed.
  std::optional<size_t> held;
};

struct BudgetedPlaces {
  std::vector<BudgetedPlace> places;  ///< by unit
  /// Bytes of the addresses that they were given: at most the budget, unless a unit, and what is
  /// used at the same time, needs more.
  int64_t planned_bytes = 0;
};

/// Starts the gathers of each unit, in this order, as early as the budget permits: where addresses
/// below `budget_bytes` are free from there to the unit's end, in one piece. Units that start
/// earlier have taken theirs. So there is a plan of these buffers within the budget, and bytes that
/// live at once are at most as many. A unit is not gathered if nothing has taken the addresses of
/// the same data meanwhile: then they are kept until its own last use. No unit starts before the
/// one before it, because a communicator takes its calls in one order. A unit for which there is no
/// room even at its own place starts there, above the budget. Requires: `task` ascends, earliest <=
/// task < end. O(units x units that live at once), and for each unit of data that was gathered
/// before, up to all units since.
BudgetedPlaces place_within_budget(std::span<const BudgetedUnit> units, int64_t budget_bytes);

}  // namespace braid
