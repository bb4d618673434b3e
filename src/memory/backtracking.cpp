#include "memory/backtracking.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <unordered_set>
#include <utility>
#include <vector>

#include "memory/greedy.h"

namespace braid {
namespace {

constexpr int64_t kNsPerStep = 300;
constexpr int64_t kNsPerLiveBuffer = 30;

// A search for one size that does not end soon seldom ends: leave steps for other sizes.
constexpr int64_t kSizesToTry = 8;

/// By place in the order of first tasks.
struct Neighbours {
  std::vector<std::vector<uint32_t>> before;  ///< earlier buffers that interfere with this one
  std::vector<std::vector<uint32_t>> live;    ///< earlier ones that interfere with this or a later
  std::vector<std::vector<uint32_t>> all;     ///< earlier and later ones that interfere with this
};

Neighbours find_neighbours(const LiveRanges& ranges, std::span<const uint32_t> buffers) {
  Neighbours found{.before = std::vector<std::vector<uint32_t>>(buffers.size()),
                   .live = std::vector<std::vector<uint32_t>>(buffers.size()),
                   .all = std::vector<std::vector<uint32_t>>(buffers.size())};
  std::vector<uint32_t> last(buffers.size(), 0);  // the last place that interferes with this one
  std::vector<uint32_t> live;
  for (uint32_t place = 0; place < buffers.size(); ++place) {
    std::erase_if(live, [&](uint32_t other) {
      return ranges.end_task(buffers[other]) <= ranges.first_task(buffers[place]);
    });
    for (const uint32_t other : live) {
      if (ranges.interfere(buffers[place], buffers[other])) {
        found.before[place].push_back(other);
        found.all[place].push_back(other);
        found.all[other].push_back(place);
        last[other] = place;
      }
    }
    live.push_back(place);
  }
  live.clear();
  for (uint32_t place = 0; place < buffers.size(); ++place) {
    std::erase_if(live, [&](uint32_t other) { return last[other] < place; });
    found.live[place] = live;
    live.push_back(place);
  }
  return found;
}

class Backtracking {
 public:
  Backtracking(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes)
      : buffers_(buffers_by_first_task(ranges, sizes_bytes)),
        neighbours_(find_neighbours(ranges, buffers_)),
        offsets_(buffers_.size(), 0) {
    for (const uint32_t buffer : buffers_) {
      sizes_.push_back(sizes_bytes[buffer]);
      unit_bytes_ = std::gcd(unit_bytes_, sizes_.back());
    }
  }

  /// The largest number that divides all sizes.
  int64_t unit_bytes() const { return unit_bytes_; }
  int64_t num_steps() const { return num_steps_; }

  /// Whether the buffers fit into `arena_bytes`, as far as `max_steps` tell.
  bool fit(int64_t arena_bytes, int64_t max_steps) {
    arena_bytes_ = arena_bytes;
    dead_.clear();
    choices_.clear();
    const int64_t end = num_steps_ + max_steps;
    choices_.push_back(choices_at(0));
    while (!choices_.empty() && num_steps_ < end) {
      Choices& last = choices_.back();
      if (last.offsets.empty()) {
        dead_.insert(last.key);
        choices_.pop_back();
        continue;
      }
      const auto place = static_cast<uint32_t>(choices_.size() - 1);
      offsets_[place] = last.offsets.back();
      last.offsets.pop_back();
      if (place + 1 == buffers_.size()) {
        return true;
      }
      choices_.push_back(choices_at(place + 1));
    }
    return false;
  }

  /// Of the last search that found one. Buffers slide down as far as those below them permit.
  Packing packing(size_t num_buffers) const {
    std::vector<uint32_t> upwards(buffers_.size());
    std::iota(upwards.begin(), upwards.end(), 0u);
    std::ranges::stable_sort(upwards, {}, [&](uint32_t place) { return offsets_[place]; });
    std::vector<int64_t> lowest(buffers_.size(), 0);
    Packing packing;
    packing.offset_bytes.assign(num_buffers, 0);
    for (const uint32_t place : upwards) {
      const int64_t end = lowest[place] + sizes_[place];
      packing.offset_bytes[buffers_[place]] = lowest[place];
      packing.arena_bytes = std::max(packing.arena_bytes, end);
      for (const uint32_t other : neighbours_.all[place]) {
        if (offsets_[other] > offsets_[place]) {
          lowest[other] = std::max(lowest[other], end);
        }
      }
    }
    return packing;
  }

 private:
  /// Where a buffer may lie, given those before it.
  struct Choices {
    uint64_t key = 0;  ///< of the offsets of live buffers
    std::vector<int64_t> offsets;
  };

  uint64_t key_at(uint32_t place) const {
    uint64_t key = place * 0x9E3779B97F4A7C15u;
    for (const uint32_t other : neighbours_.live[place]) {
      key = (key ^ static_cast<uint64_t>(offsets_[other])) * 0xBF58476D1CE4E5B9u;
      key ^= key >> 31;
    }
    return key;
  }

  Choices choices_at(uint32_t place) {
    Choices choices{.key = key_at(place), .offsets = {}};
    if (dead_.contains(choices.key)) {
      return choices;
    }
    ++num_steps_;
    taken_.clear();
    for (const uint32_t other : neighbours_.before[place]) {
      taken_.emplace_back(offsets_[other], offsets_[other] + sizes_[other]);
    }
    taken_.emplace_back(arena_bytes_, arena_bytes_);
    std::sort(taken_.begin(), taken_.end());
    int64_t reached = 0;
    for (const auto& [begin, end] : taken_) {
      const int64_t spare = begin - reached - sizes_[place];
      if (spare >= 0) {
        choices.offsets.push_back(reached);
      }
      if (spare > 0) {
        choices.offsets.push_back(reached + spare);
      }
      reached = std::max(reached, end);
    }
    shuffle(choices.offsets);
    return choices;
  }

  /// Not std::shuffle, whose result depends on the library.
  void shuffle(std::vector<int64_t>& offsets) {
    for (size_t left = offsets.size(); left > 1; --left) {
      std::swap(offsets[left - 1], offsets[random_() % left]);
    }
  }

  std::vector<uint32_t> buffers_;
  Neighbours neighbours_;
  std::vector<int64_t> sizes_;    // by place
  std::vector<int64_t> offsets_;  // by place
  int64_t unit_bytes_ = 0;
  int64_t arena_bytes_ = 0;
  int64_t num_steps_ = 0;
  std::vector<Choices> choices_;  // by place, of the buffers placed and the next one
  std::unordered_set<uint64_t> dead_;
  std::vector<std::pair<int64_t, int64_t>> taken_;
  std::mt19937_64 random_;
};

}  // namespace

std::optional<Packing> pack_by_backtracking(const LiveRanges& ranges,
                                            std::span<const int64_t> sizes_bytes,
                                            const BacktrackingOptions& options) {
  Backtracking search(ranges, sizes_bytes);
  if (search.unit_bytes() == 0) {
    return std::nullopt;
  }
  const auto rounded = [&](int64_t bytes) { return bytes - bytes % search.unit_bytes(); };
  std::optional<Packing> best;
  int64_t too_small = 0;
  int64_t large_enough = options.limit_bytes;
  int64_t arena_bytes = rounded(options.bound_bytes);
  for (int64_t left = kSizesToTry;
       left > 0 && too_small < arena_bytes && arena_bytes < large_enough; --left) {
    const int64_t share = left == kSizesToTry ? 2 : left;  // the first one is worth the most
    if (search.fit(arena_bytes, (options.max_steps - search.num_steps()) / share)) {
      best = search.packing(ranges.num_buffers());
      large_enough = best->arena_bytes;
    } else {
      too_small = arena_bytes;
    }
    if (large_enough <= options.target_bytes) {
      break;
    }
    arena_bytes = rounded(options.target_bytes);
    if (arena_bytes <= too_small) {
      arena_bytes = rounded(too_small + (large_enough - too_small) / 2);
    }
  }
  return best;
}

int64_t backtracking_step_ns(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes) {
  const auto num_buffers = static_cast<int64_t>(buffers_by_first_task(ranges, sizes_bytes).size());
  return kNsPerStep + kNsPerLiveBuffer * count_overlapping_pairs(ranges, sizes_bytes) /
                          std::max<int64_t>(num_buffers, 1);
}

}  // namespace braid
