#include "memory/rounds.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "base/errors.h"
#include "memory/greedy.h"

namespace braid {
namespace {

constexpr int64_t kSetupNsPerPair = 10;
constexpr int64_t kRoundPsPerSquare = 1500;  // per square of the number of buffers
constexpr int64_t kRoundsPerStart = 32;

/// Which buffers of a list interfere, as bits.
class Interference {
 public:
  /// `buffers` are ordered by first task.
  Interference(const LiveRanges& ranges, std::span<const uint32_t> buffers)
      : words_per_row_((buffers.size() + 63) / 64), words_(words_per_row_ * buffers.size(), 0) {
    std::vector<uint32_t> live;
    for (uint32_t later = 0; later < buffers.size(); ++later) {
      std::erase_if(live, [&](uint32_t index) {
        return ranges.end_task(buffers[index]) <= ranges.first_task(buffers[later]);
      });
      for (const uint32_t earlier : live) {
        if (ranges.interfere(buffers[later], buffers[earlier])) {
          set(later, earlier);
          set(earlier, later);
        }
      }
      live.push_back(later);
    }
  }

  const uint64_t* row(uint32_t index) const { return &words_[index * words_per_row_]; }
  static bool is_set(const uint64_t* row, uint32_t index) {
    return (row[index / 64] >> (index % 64) & 1) != 0;
  }

 private:
  void set(uint32_t row, uint32_t index) {
    words_[row * words_per_row_ + index / 64] |= uint64_t{1} << (index % 64);
  }

  size_t words_per_row_;
  std::vector<uint64_t> words_;
};

/// The task in program order at which most bytes live.
uint32_t task_of_peak(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                      std::span<const uint32_t> buffers) {
  std::map<uint32_t, int64_t> change_bytes;
  for (const uint32_t buffer : buffers) {
    change_bytes[ranges.first_task(buffer)] += sizes_bytes[buffer];
    change_bytes[ranges.end_task(buffer)] -= sizes_bytes[buffer];
  }
  uint32_t peak = 0;
  int64_t peak_bytes = 0;
  int64_t live_bytes = 0;
  for (const auto& [task, change] : change_bytes) {
    live_bytes += change;
    if (live_bytes > peak_bytes) {
      peak_bytes = live_bytes;
      peak = task;
    }
  }
  return peak;
}

class Rounds {
 public:
  Rounds(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes)
      : ranges_(ranges),
        sizes_bytes_(sizes_bytes),
        buffers_(buffers_by_first_task(ranges, sizes_bytes)),
        interference_(ranges, buffers_) {}

  /// Indices into the buffers, from the peak outwards; of buffers at one distance those that end
  /// later come first.
  std::vector<uint32_t> first_order() const {
    const uint32_t peak = task_of_peak(ranges_, sizes_bytes_, buffers_);
    const auto distance = [&](uint32_t index) {
      const uint32_t first = ranges_.first_task(buffers_[index]);
      const uint32_t end = ranges_.end_task(buffers_[index]);
      return first > peak ? first - peak : end <= peak ? peak - end + 1 : 0;
    };
    std::vector<uint32_t> order(buffers_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      const uint32_t of_a = distance(a);
      const uint32_t of_b = distance(b);
      return of_a != of_b ? of_a < of_b
                          : ranges_.end_task(buffers_[a]) > ranges_.end_task(buffers_[b]);
    });
    return order;
  }

  Packing place(std::span<const uint32_t> order) {
    Packing packing;
    packing.offset_bytes.assign(ranges_.num_buffers(), 0);
    placed_.clear();
    for (const uint32_t index : order) {
      const int64_t size_bytes = sizes_bytes_[buffers_[index]];
      const int64_t offset = first_gap(index, size_bytes);
      const auto above =
          std::partition_point(placed_.begin(), placed_.end(),
                               [&](const Placed& other) { return other.begin <= offset; });
      placed_.insert(above, {offset, offset + size_bytes, index});
      packing.offset_bytes[buffers_[index]] = offset;
      packing.arena_bytes = std::max(packing.arena_bytes, offset + size_bytes);
    }
    return packing;
  }

  /// The next order to try: buffers that end above the target move forward.
  std::vector<uint32_t> move_forward(std::span<const uint32_t> order, const Packing& packing,
                                     int64_t target_bytes) {
    std::vector<std::pair<uint64_t, uint32_t>> places;
    for (uint64_t place = 0; place < order.size(); ++place) {
      const uint32_t buffer = buffers_[order[place]];
      const bool is_above = packing.offset_bytes[buffer] + sizes_bytes_[buffer] > target_bytes;
      // Doubled, so that a buffer that moves comes before the one that already has that place.
      places.emplace_back(is_above ? 2 * (random_() % (place + 1)) : 2 * place + 1, order[place]);
    }
    std::stable_sort(places.begin(), places.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<uint32_t> moved;
    moved.reserve(places.size());
    for (const auto& [place, index] : places) {
      moved.push_back(index);
    }
    return moved;
  }

 private:
  struct Placed {
    int64_t begin;
    int64_t end;
    uint32_t index;
  };

  /// The lowest offset with enough bytes free of placed buffers that interfere.
  int64_t first_gap(uint32_t index, int64_t size_bytes) const {
    const uint64_t* row = interference_.row(index);
    int64_t reached = 0;
    for (const Placed& other : placed_) {
      if (!Interference::is_set(row, other.index)) {
        continue;
      }
      if (other.begin - reached >= size_bytes) {
        break;
      }
      reached = std::max(reached, other.end);
    }
    return reached;
  }

  const LiveRanges& ranges_;
  std::span<const int64_t> sizes_bytes_;
  std::vector<uint32_t> buffers_;
  Interference interference_;
  std::vector<Placed> placed_;  // by offset
  std::mt19937_64 random_;
};

}  // namespace

Packing pack_in_rounds(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                       int64_t target_bytes, int64_t num_rounds) {
  check(num_rounds > 0, "{} rounds of packing place nothing", num_rounds);
  Rounds rounds(ranges, sizes_bytes);
  const std::vector<uint32_t> first_order = rounds.first_order();
  std::vector<uint32_t> order = first_order;
  Packing best = rounds.place(order);
  Packing last = best;
  for (int64_t round = 1; round < num_rounds && best.arena_bytes > target_bytes; ++round) {
    if (round % kRoundsPerStart == 0) {
      order = first_order;
      last = rounds.place(order);
    }
    order = rounds.move_forward(order, last, target_bytes);
    last = rounds.place(order);
    if (last.arena_bytes < best.arena_bytes) {
      best = last;
    }
  }
  return best;
}

int64_t rounds_setup_ns(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes) {
  return kSetupNsPerPair * count_overlapping_pairs(ranges, sizes_bytes);
}

int64_t round_ns(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes) {
  const auto num_buffers = static_cast<int64_t>(buffers_by_first_task(ranges, sizes_bytes).size());
  return kRoundPsPerSquare * num_buffers * num_buffers / 1000;
}

}  // namespace braid
