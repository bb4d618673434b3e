#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

/// A task of one of two lists that are to be merged.
struct WeaveItem {
  static constexpr uint8_t kCompute = UINT8_MAX;

  int64_t ns = 0;              ///< what it takes alone
  uint8_t channel = kCompute;  ///< or the queue of communication that it is in, 0 to 7
  /// Items that it must follow: positions in both lists together, all earlier ones.
  std::vector<uint32_t> predecessors;
};

struct Woven {
  std::vector<uint32_t> order;  ///< of all items
  int64_t ns = 0;               ///< until everything has ended
  int64_t unwoven_ns = 0;       ///< the same for one list behind the other
  bool is_woven() const { return ns < unwoven_ns; }
};

/// Merges two lists, items [0, num_first) and the rest, so that communication of one has compute of
/// the other beside it. Each list keeps its order, and what depends on an item of the other list
/// stays behind it. On a clock of one compute queue and one queue per channel, each of which takes
/// its items in the order of the merge, each when what it depends on has ended:
///  - the list whose next compute can begin earlier goes on;
///  - if both can, the one that has communication left; if both have, either they take turns from
///    call to call, or the one that has run goes on unless the other is much nearer to its next
///    call;
///  - communication is queued as soon as its list has come to it.
/// Which of these, how much nearer that is, and which list begins, is tried: the merge that ends
/// first is taken, but the first one tried, which is to take turns, unless another is better by
/// more than `margin_percent`: for prices that are rough. Deterministic. Near-linear in items and
/// predecessors. If no merge ends before the lists one behind the other, that is the order.
Woven weave(std::span<const WeaveItem> items, uint32_t num_first, int64_t margin_percent = 0);

}  // namespace braid
