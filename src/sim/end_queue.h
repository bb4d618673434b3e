#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace braid {

/// Items by number, ordered by end time: a binary heap in which the end of an item can be changed.
/// Items with equal ends come in no particular order.
class EndQueue {
 public:
  static constexpr uint32_t kNotQueued = UINT32_MAX;

  /// Clears the queue, for numbers below `capacity`.
  void reset(size_t capacity) {
    heap_.clear();
    heap_.reserve(capacity);
    place_.assign(capacity, kNotQueued);
  }

  bool empty() const { return heap_.empty(); }
  int64_t next_end_ns() const { return heap_.front().end_ns; }

  /// Adds the item, or changes its end.
  void set(uint32_t thing, int64_t end_ns) {
    uint32_t at = place_[thing];
    if (at == kNotQueued) {
      at = static_cast<uint32_t>(heap_.size());
      heap_.push_back({end_ns, thing});
      place_[thing] = at;
      rise(at);
      return;
    }
    const int64_t before_ns = std::exchange(heap_[at].end_ns, end_ns);
    end_ns < before_ns ? rise(at) : sink(at);
  }

  /// Removes and returns the item that ends next.
  uint32_t pop() {
    const uint32_t thing = heap_.front().thing;
    place_[thing] = kNotQueued;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) {
      put(0, last);
      sink(0);
    }
    return thing;
  }

 private:
  struct Entry {
    int64_t end_ns = 0;
    uint32_t thing = 0;
  };

  void put(uint32_t at, const Entry& entry) {
    heap_[at] = entry;
    place_[entry.thing] = at;
  }

  void rise(uint32_t at) {
    const Entry entry = heap_[at];
    for (uint32_t parent = 0; at > 0; at = parent) {
      parent = (at - 1) / 2;
      if (heap_[parent].end_ns <= entry.end_ns) {
        break;
      }
      put(at, heap_[parent]);
    }
    put(at, entry);
  }

  void sink(uint32_t at) {
    const Entry entry = heap_[at];
    const auto size = static_cast<uint32_t>(heap_.size());
    for (uint32_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
      child += child + 1 < size && heap_[child + 1].end_ns < heap_[child].end_ns ? 1 : 0;
      if (entry.end_ns <= heap_[child].end_ns) {
        break;
      }
      put(at, heap_[child]);
      at = child;
    }
    put(at, entry);
  }

  std::vector<Entry> heap_;
  std::vector<uint32_t> place_;
};

}  // namespace braid
