#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

/// A task of one of the two lists to merge.
struct WeaveItem {
  static constexpr uint8_t kCompute = UINT8_MAX;

  int64_t ns = 0;              ///< duration when it runs alone
  uint8_t channel = kCompute;  ///< or its communication queue, 0 to 7
  /// Items that it must follow, as positions in both lists together. All are earlier.
  std::vector<uint32_t> predecessors;
};

struct Woven {
  std::vector<uint32_t> order;  ///< of all items
  int64_t ns = 0;               ///< time until all items have ended
  int64_t unwoven_ns = 0;       ///< the same if the lists run one after the other
  bool is_woven() const { return ns < unwoven_ns; }
};

/// Merges two lists, items [0, num_first) and the rest, so that communication of one list runs
/// beside compute of the other. Each list keeps its order, and an item stays behind the items of
/// the other list that it depends on. The merge simulates one compute queue and one queue per
/// channel. Each queue runs its items in the order of the merge; an item starts when its
/// predecessors have ended. Rules:
/// - The list whose next compute can begin earlier continues.
/// - If both can begin at the same time, the list that has communication left continues.
/// - If both have communication left, a policy decides: either the lists take turns after each
/// call,
///  or the current list continues unless the other is much nearer to its next call.
/// - Communication is queued as soon as its list reaches it.
///
/// Several policies are tried: turns or not, how much nearer, and which list begins. The merge that
/// ends first is taken. The first policy tried takes turns; another one replaces it only if it is
/// better by more than `margin_percent`, for prices that are rough. If no merge ends before the
/// lists one after the other, that order is returned. Deterministic. Near-linear in items and
/// predecessors.
Woven weave(std::span<const WeaveItem> items, uint32_t num_first, int64_t margin_percent = 0);

}  // namespace braid
