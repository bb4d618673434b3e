#include "memory/sweep.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <vector>

namespace braid {
namespace {

struct Block {
  int64_t begin;
  int64_t end;
};

/// Free bytes of one queue below the top of the arena, as maximal blocks.
class FreeBlocks {
 public:
  void add(Block block) {
    auto next = by_begin_.lower_bound(block.begin);
    if (next != by_begin_.end() && next->first == block.end) {
      block.end = next->second;
      next = erase(next);
    }
    if (next != by_begin_.begin()) {
      const auto previous = std::prev(next);
      if (previous->second == block.begin) {
        block.begin = previous->first;
        erase(previous);
      }
    }
    insert(block);
  }

  /// Takes the free parts of the block.
  void remove(Block block) {
    auto entry = by_begin_.upper_bound(block.begin);
    if (entry != by_begin_.begin()) {
      --entry;
    }
    while (entry != by_begin_.end() && entry->first < block.end) {
      const Block old{entry->first, entry->second};
      if (old.end <= block.begin) {
        ++entry;
        continue;
      }
      entry = erase(entry);
      if (old.begin < block.begin) {
        insert({old.begin, block.begin});
      }
      if (block.end < old.end) {
        insert({block.end, old.end});
      }
    }
  }

  /// Smallest block of at least `size_bytes`, the lowest of equal ones; empty if there is none.
  Block smallest(int64_t size_bytes) const {
    const auto found = by_size_.lower_bound({size_bytes, 0});
    return found == by_size_.end() ? Block{0, 0}
                                   : Block{found->second, found->second + found->first};
  }

  /// Highest block of at least `size_bytes` among the few highest; empty if there is none.
  Block highest(int64_t size_bytes) const {
    int num_looked_at = 0;
    for (auto entry = by_begin_.rbegin(); entry != by_begin_.rend() && num_looked_at < kMaxLookedAt;
         ++entry, ++num_looked_at) {
      if (entry->second - entry->first >= size_bytes) {
        return {entry->first, entry->second};
      }
    }
    return smallest(size_bytes);
  }

  /// Lowest block of at least `size_bytes` among the few lowest; empty if there is none.
  Block lowest(int64_t size_bytes) const {
    int num_looked_at = 0;
    for (auto entry = by_begin_.begin(); entry != by_begin_.end() && num_looked_at < kMaxLookedAt;
         ++entry, ++num_looked_at) {
      if (entry->second - entry->first >= size_bytes) {
        return {entry->first, entry->second};
      }
    }
    return smallest(size_bytes);
  }

  /// The block that ends at `top`; empty if that byte is in use.
  Block last(int64_t top) const {
    if (by_begin_.empty() || by_begin_.rbegin()->second != top) {
      return {top, top};
    }
    return {by_begin_.rbegin()->first, top};
  }

 private:
  using Entry = std::map<int64_t, int64_t>::iterator;
  static constexpr int kMaxLookedAt = 64;

  void insert(Block block) {
    by_begin_.emplace(block.begin, block.end);
    by_size_.emplace(block.end - block.begin, block.begin);
  }
  Entry erase(Entry entry) {
    by_size_.erase({entry->second - entry->first, entry->first});
    return by_begin_.erase(entry);
  }

  std::map<int64_t, int64_t> by_begin_;            // begin -> end
  std::set<std::pair<int64_t, int64_t>> by_size_;  // (size, begin)
};

/// The last buffer placed over each byte. It decides for all queues whether the byte is free:
/// earlier buffers at that byte ended before it began.
class Owners {
 public:
  void set(Block block, uint32_t buffer) {
    split_at(block.begin);
    split_at(block.end);
    by_begin_.erase(by_begin_.lower_bound(block.begin), by_begin_.lower_bound(block.end));
    by_begin_.insert_or_assign(block.begin, Part{block.end, buffer});
  }

  /// Calls `visit(Block)` for each part of the block that `buffer` still owns.
  template <class Visit>
  void for_parts_of(Block block, uint32_t buffer, const Visit& visit) const {
    for (auto part = by_begin_.lower_bound(block.begin);
         part != by_begin_.end() && part->first < block.end; ++part) {
      if (part->second.buffer == buffer) {
        visit(Block{part->first, part->second.end});
      }
    }
  }

 private:
  struct Part {
    int64_t end;
    uint32_t buffer;
  };

  void split_at(int64_t offset) {
    auto part = by_begin_.lower_bound(offset);
    if (part == by_begin_.begin()) {
      return;
    }
    --part;
    if (part->second.end > offset) {
      by_begin_.emplace(offset, part->second);
      part->second.end = offset;
    }
  }

  std::map<int64_t, Part> by_begin_;
};

class Sweep {
 public:
  Sweep(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes, const SweepOptions& options)
      : ranges_(ranges),
        sizes_bytes_(sizes_bytes),
        options_(options),
        free_(ranges.num_queues()),
        releases_(ranges.num_queues()),
        num_released_(ranges.num_queues(), 0),
        top_bytes_(options.expected_bytes) {
    packing_.offset_bytes.assign(ranges.num_buffers(), 0);
    for (uint32_t buffer = 0; buffer < ranges.num_buffers(); ++buffer) {
      if (ranges.is_used(buffer) && sizes_bytes[buffer] > 0) {
        buffers_.push_back(buffer);
      }
    }
    for (FreeBlocks& blocks : free_) {
      if (top_bytes_ > 0) {
        blocks.add({0, top_bytes_});
      }
    }
  }

  Packing run() {
    sort_releases();
    std::stable_sort(buffers_.begin(), buffers_.end(), [&](uint32_t a, uint32_t b) {
      return ranges_.first_task(a) < ranges_.first_task(b);
    });
    for (const uint32_t buffer : buffers_) {
      release_until(ranges_.queue(buffer), ranges_.start(buffer));
      place(buffer);
    }
    return std::move(packing_);
  }

 private:
  void sort_releases() {
    for (size_t queue = 0; queue < releases_.size(); ++queue) {
      for (const uint32_t buffer : buffers_) {
        if (ranges_.end(buffer, queue) != LiveRanges::kNever) {
          releases_[queue].push_back(buffer);
        }
      }
      std::sort(releases_[queue].begin(), releases_[queue].end(), [&](uint32_t a, uint32_t b) {
        return ranges_.end(a, queue) < ranges_.end(b, queue);
      });
    }
  }

  /// Frees, for `queue`, the buffers that end at or before the position. Such a buffer has been
  /// placed: its last task comes earlier in the program.
  void release_until(uint32_t queue, uint32_t position) {
    const std::vector<uint32_t>& releases = releases_[queue];
    size_t& next = num_released_[queue];
    while (next < releases.size() && ranges_.end(releases[next], queue) <= position) {
      const uint32_t buffer = releases[next++];
      const Block block = block_of(buffer);
      if (free_.size() == 1) {
        free_[queue].add(block);
      } else {
        owners_.for_parts_of(block, buffer, [&](Block part) { free_[queue].add(part); });
      }
    }
  }

  void place(uint32_t buffer) {
    const int64_t offset = choose_offset(buffer);
    const Block block{offset, offset + sizes_bytes_[buffer]};
    packing_.offset_bytes[buffer] = offset;
    packing_.arena_bytes = std::max(packing_.arena_bytes, block.end);
    for (FreeBlocks& blocks : free_) {
      blocks.remove(block);
    }
    top_bytes_ = std::max(top_bytes_, block.end);
    if (free_.size() > 1) {
      owners_.set(block, buffer);
    }
  }

  int64_t choose_offset(uint32_t buffer) const {
    const FreeBlocks& blocks = free_[ranges_.queue(buffer)];
    const int64_t size = sizes_bytes_[buffer];
    const bool from_above =
        ranges_.end_task(buffer) - ranges_.first_task(buffer) <= options_.short_life_tasks;
    const Block chosen = options_.short_life_tasks == 0 ? blocks.smallest(size)
                         : from_above                   ? blocks.highest(size)
                                                        : blocks.lowest(size);
    if (chosen.begin == chosen.end) {
      return blocks.last(top_bytes_).begin;
    }
    return from_above ? chosen.end - size : chosen.begin;
  }

  Block block_of(uint32_t buffer) const {
    const int64_t begin = packing_.offset_bytes[buffer];
    return {begin, begin + sizes_bytes_[buffer]};
  }

  const LiveRanges& ranges_;
  std::span<const int64_t> sizes_bytes_;
  SweepOptions options_;
  std::vector<uint32_t> buffers_;
  std::vector<FreeBlocks> free_;                 // by queue
  std::vector<std::vector<uint32_t>> releases_;  // by queue: buffers by end
  std::vector<size_t> num_released_;
  Owners owners_;
  int64_t top_bytes_;
  Packing packing_;
};

}  // namespace

Packing pack_in_program_order(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                              const SweepOptions& options) {
  return Sweep(ranges, sizes_bytes, options).run();
}

}  // namespace braid
