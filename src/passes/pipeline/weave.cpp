#include "passes/pipeline/weave.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/errors.h"

namespace braid {
namespace {

constexpr size_t kNumChannels = 8;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// How a merge chooses a list when both can continue.
struct Policy {
  size_t begins = 0;  ///< the list that runs first
  /// The other list continues after the current one has queued a call.
  bool alternates = false;
  /// Without `alternates`: the other list continues if its compute before its next call is shorter
  /// than this many eighths of the current list's.
  int64_t eighths = 0;
};

std::array<Policy, 10> policies() {
  std::array<Policy, 10> all;
  for (size_t i = 0; i < all.size(); ++i) {
    constexpr std::array<int64_t, 5> kEighths = {0, 0, 2, 4, 8};
    all[i] = {.begins = i % 2, .alternates = i < 2, .eighths = kEighths[i / 2]};
  }
  return all;
}

/// By item: compute of its list from there to its next communication; kNever: no communication
/// follows.
std::vector<int64_t> ways_to_communication(std::span<const WeaveItem> items, uint32_t num_first) {
  std::vector<int64_t> ways(items.size(), kNever);
  for (size_t i = items.size(); i-- > 0;) {
    const bool is_last = i + 1 == items.size() || i + 1 == num_first;
    const int64_t behind = is_last ? kNever : ways[i + 1];
    ways[i] = items[i].channel != WeaveItem::kCompute ? 0
              : behind == kNever                      ? kNever
                                                      : behind + items[i].ns;
  }
  return ways;
}

/// Simulates one merge.
class Merge {
 public:
  Merge(std::span<const WeaveItem> items, uint32_t num_first, std::span<const int64_t> ways)
      : items_(items),
        ways_(ways),
        end_of_{num_first, static_cast<uint32_t>(items.size())},
        next_{0, num_first},
        ended_(items.size(), kNever) {
    order_.reserve(items.size());
  }

  void run(const Policy& policy) {
    current_ = policy.begins;
    take_free_ones(0);  // the first list's inputs come first, whichever list begins to compute
    while (order_.size() < items_.size()) {
      queue_communication();
      if (order_.size() == items_.size()) {
        break;
      }
      turn_to(choose(policy));
      take(next_[current_]++);
    }
  }

  /// Runs one list after the other.
  void run_in_order() {
    for (uint32_t item = 0; item < items_.size(); ++item) {
      take(item);
    }
  }

  std::vector<uint32_t> take_order() { return std::move(order_); }
  int64_t ns() const { return *std::max_element(free_.begin(), free_.end()); }

 private:
  bool has_next(size_t list) const { return next_[list] < end_of_[list]; }
  bool is_communication(uint32_t item) const { return items_[item].channel != WeaveItem::kCompute; }

  bool may_follow(uint32_t item) const {
    return std::ranges::all_of(items_[item].predecessors,
                               [&](uint32_t on) { return ended_[on] != kNever; });
  }

  int64_t ready(uint32_t item) const {
    int64_t time = 0;
    for (const uint32_t on : items_[item].predecessors) {
      time = std::max(time, ended_[on]);
    }
    return time;
  }

  void take(uint32_t item) {
    int64_t& free = free_[is_communication(item) ? 1 + items_[item].channel : 0];
    free = std::max(free, ready(item)) + items_[item].ns;
    ended_[item] = free;
    order_.push_back(item);
  }

  void take_free_ones(size_t list) {
    while (has_next(list) && items_[next_[list]].ns == 0 && may_follow(next_[list])) {
      take(next_[list]++);
    }
  }

  void queue_communication() {
    for (bool found = true; found;) {
      found = false;
      for (const size_t list : {current_, 1 - current_}) {
        while (has_next(list) && is_communication(next_[list]) && may_follow(next_[list])) {
          has_called_ |= list == current_ && items_[next_[list]].ns > 0;
          take(next_[list]++);
          found = true;
        }
      }
    }
  }

  void turn_to(size_t list) {
    has_called_ = has_called_ && list == current_;
    current_ = list;
  }

  /// Chooses the list whose next item runs now. The next item of both lists is compute.
  size_t choose(const Policy& policy) const {
    const size_t other = 1 - current_;
    const auto can = [&](size_t list) { return has_next(list) && may_follow(next_[list]); };
    if (!can(current_) || !can(other)) {
      check(can(current_) || can(other), "two lists wait for each other");
      return can(current_) ? current_ : other;
    }
    const int64_t own = std::max(free_[0], ready(next_[current_]));
    const int64_t others = std::max(free_[0], ready(next_[other]));
    if (own != others) {
      return own < others ? current_ : other;
    }
    const int64_t own_way = ways_[next_[current_]];
    const int64_t others_way = ways_[next_[other]];
    if (own_way == kNever || others_way == kNever) {
      return others_way == kNever ? current_ : other;
    }
    const bool turns = policy.alternates ? has_called_ : others_way * 8 < own_way * policy.eighths;
    return turns ? other : current_;
  }

  std::span<const WeaveItem> items_;
  std::span<const int64_t> ways_;
  std::array<uint32_t, 2> end_of_;
  std::array<uint32_t, 2> next_;
  std::array<int64_t, 1 + kNumChannels> free_{};  // when compute and each channel are free
  std::vector<int64_t> ended_;                    // by item; kNever: not taken yet
  std::vector<uint32_t> order_;
  size_t current_ = 0;
  bool has_called_ = false;  // the current list has queued a call in its turn
};

}  // namespace

Woven weave(std::span<const WeaveItem> items, uint32_t num_first, int64_t margin_percent) {
  const std::vector<int64_t> ways = ways_to_communication(items, num_first);
  Merge unwoven(items, num_first, ways);
  unwoven.run_in_order();
  Woven best{.order = {}, .ns = unwoven.ns(), .unwoven_ns = unwoven.ns()};
  best.order = unwoven.take_order();
  for (const Policy& policy : policies()) {
    Merge merge(items, num_first, ways);
    merge.run(policy);
    const int64_t margin = best.is_woven() ? best.ns * margin_percent / 100 : 0;
    if (merge.ns() + margin < best.ns) {
      best.ns = merge.ns();
      best.order = merge.take_order();
    }
  }
  return best;
}

}  // namespace braid
