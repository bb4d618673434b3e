#include "memory/sweep.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "memory/greedy.h"

namespace braid {
namespace {

struct Block {
  int64_t begin;
  int64_t end;
};

/// Free bytes of one queue below the top of the arena, as maximal blocks. Sorted vectors: there are
/// few blocks, and trees of them spend most of their time in memory allocation.
class FreeBlocks {
 public:
  void add(Block block) {
    auto at = by_begin_.begin() + index_from(block.begin);
    const bool joins_next = at != by_begin_.end() && at->begin == block.end;
    if (joins_next) {
      block.end = at->end;
      forget(*at);
    }
    if (at != by_begin_.begin() && std::prev(at)->end == block.begin) {
      block.begin = std::prev(at)->begin;
      forget(*std::prev(at));
      at = joins_next ? by_begin_.erase(at) : at;
      *std::prev(at) = block;
    } else if (joins_next) {
      *at = block;
    } else {
      by_begin_.insert(at, block);
    }
    note(block);
  }

  /// Takes the free parts of the block.
  void remove(Block block) {
    auto at = by_begin_.begin() + index_from(block.begin);
    if (at != by_begin_.begin() && std::prev(at)->end > block.begin) {
      --at;
    }
    while (at != by_begin_.end() && at->begin < block.end) {
      const Block old = *at;
      forget(old);
      if (old.begin < block.begin) {
        *at = {old.begin, block.begin};
        note(*at++);
        if (block.end < old.end) {
          at = by_begin_.insert(at, {block.end, old.end});
          note(*at++);
        }
      } else if (block.end < old.end) {
        *at = {block.end, old.end};
        note(*at++);
      } else {
        at = by_begin_.erase(at);
      }
    }
  }

  /// Smallest block of at least `size_bytes`, the lowest of equal ones; empty if there is none.
  Block smallest(int64_t size_bytes) const {
    const auto found = std::ranges::lower_bound(by_size_, std::pair{size_bytes, int64_t{0}});
    return found == by_size_.end() ? Block{0, 0}
                                   : Block{found->second, found->second + found->first};
  }

  /// Highest block of at least `size_bytes` among the few highest; empty if there is none.
  Block highest(int64_t size_bytes) const {
    const size_t num_looked_at = std::min(by_begin_.size(), kMaxLookedAt);
    for (size_t i = 1; i <= num_looked_at; ++i) {
      const Block& block = by_begin_[by_begin_.size() - i];
      if (block.end - block.begin >= size_bytes) {
        return block;
      }
    }
    return smallest(size_bytes);
  }

  /// Lowest block of at least `size_bytes` among the few lowest; empty if there is none.
  Block lowest(int64_t size_bytes) const {
    const size_t num_looked_at = std::min(by_begin_.size(), kMaxLookedAt);
    for (size_t i = 0; i < num_looked_at; ++i) {
      if (by_begin_[i].end - by_begin_[i].begin >= size_bytes) {
        return by_begin_[i];
      }
    }
    return smallest(size_bytes);
  }

  /// The block that ends at `top`; empty if that byte is in use.
  Block last(int64_t top) const {
    if (by_begin_.empty() || by_begin_.back().end != top) {
      return {top, top};
    }
    return by_begin_.back();
  }

 private:
  static constexpr size_t kMaxLookedAt = 64;

  /// Index of the first block that begins there or later.
  ptrdiff_t index_from(int64_t begin) const {
    return std::ranges::lower_bound(by_begin_, begin, {}, &Block::begin) - by_begin_.begin();
  }
  void note(const Block& block) {
    const std::pair key{block.end - block.begin, block.begin};
    by_size_.insert(std::ranges::lower_bound(by_size_, key), key);
  }
  void forget(const Block& block) {
    by_size_.erase(
        std::ranges::lower_bound(by_size_, std::pair{block.end - block.begin, block.begin}));
  }

  std::vector<Block> by_begin_;
  std::vector<std::pair<int64_t, int64_t>> by_size_;  // (size, begin)
};

/// The last buffer placed over each byte. It decides for all queues whether the byte is free:
/// earlier buffers at that byte ended before it began.
class Owners {
 public:
  void set(Block block, uint32_t buffer) {
    const auto first =
        std::ranges::partition_point(parts_, [&](const Part& it) { return it.end <= block.begin; });
    const auto end = std::partition_point(first, parts_.end(),
                                          [&](const Part& it) { return it.begin < block.end; });
    std::array<Part, 3> parts;
    size_t num_parts = 0;
    if (first != end && first->begin < block.begin) {
      parts[num_parts++] = {first->begin, block.begin, first->buffer};
    }
    parts[num_parts++] = {block.begin, block.end, buffer};
    if (first != end && std::prev(end)->end > block.end) {
      parts[num_parts++] = {block.end, std::prev(end)->end, std::prev(end)->buffer};
    }
    replace(first, end, std::span(parts).first(num_parts));
  }

  /// Calls `visit(Block)` for each part of the block that `buffer` still owns.
  template <class Visit>
  void for_parts_of(Block block, uint32_t buffer, const Visit& visit) const {
    for (auto part = std::ranges::lower_bound(parts_, block.begin, {}, &Part::begin);
         part != parts_.end() && part->begin < block.end; ++part) {
      if (part->buffer == buffer) {
        visit(Block{part->begin, part->end});
      }
    }
  }

 private:
  struct Part {
    int64_t begin;
    int64_t end;
    uint32_t buffer;
  };

  void replace(std::vector<Part>::iterator first, std::vector<Part>::iterator end,
               std::span<const Part> parts) {
    const size_t num_kept = std::min(static_cast<size_t>(end - first), parts.size());
    const auto rest = std::copy_n(parts.begin(), num_kept, first);
    if (num_kept < parts.size()) {
      parts_.insert(rest, parts.begin() + static_cast<ptrdiff_t>(num_kept), parts.end());
    } else {
      parts_.erase(rest, end);
    }
  }

  std::vector<Part> parts_;  // by begin
};

class Sweep {
 public:
  Sweep(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes, const SweepInput& input,
        const SweepOptions& options)
      : ranges_(ranges),
        sizes_bytes_(sizes_bytes),
        input_(input),
        options_(options),
        free_(ranges.num_queues()),
        num_released_(ranges.num_queues(), 0),
        top_bytes_(options.expected_bytes) {
    packing_.offset_bytes.assign(ranges.num_buffers(), 0);
    for (FreeBlocks& blocks : free_) {
      if (top_bytes_ > 0) {
        blocks.add({0, top_bytes_});
      }
    }
  }

  Packing run() {
    for (const uint32_t buffer : input_.buffers) {
      release_until(ranges_.queue(buffer), ranges_.start(buffer));
      place(buffer);
    }
    return std::move(packing_);
  }

 private:
  /// Frees, for `queue`, the buffers that end at or before the position. Such a buffer has been
  /// placed: its last task comes earlier in the program.
  void release_until(uint32_t queue, uint32_t position) {
    const std::vector<SweepInput::Release>& releases = input_.releases[queue];
    size_t& next = num_released_[queue];
    while (next < releases.size() && releases[next].end <= position) {
      const uint32_t buffer = releases[next++].buffer;
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
  const SweepInput& input_;
  SweepOptions options_;
  std::vector<FreeBlocks> free_;      // by queue
  std::vector<size_t> num_released_;  // by queue
  Owners owners_;
  int64_t top_bytes_;
  Packing packing_;
};

}  // namespace

Packing pack_in_program_order(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                              const SweepOptions& options) {
  return Sweep(ranges, sizes_bytes, SweepInput(ranges, sizes_bytes), options).run();
}

SweepInput::SweepInput(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes)
    : buffers(buffers_by_first_task(ranges, sizes_bytes)), releases(ranges.num_queues()) {
  for (size_t queue = 0; queue < releases.size(); ++queue) {
    for (const uint32_t buffer : buffers) {
      if (const uint32_t end = ranges.end(buffer, queue); end != LiveRanges::kNever) {
        releases[queue].push_back({end, buffer});
      }
    }
    std::ranges::sort(releases[queue]);
  }
}

const Packing& Sweeps::pack(const SweepOptions& options) {
  const auto [found, is_new] =
      made_.try_emplace({options.expected_bytes, options.short_life_tasks});
  if (is_new) {
    found->second = Sweep(ranges_, sizes_bytes_, input_, options).run();
  }
  return found->second;
}

}  // namespace braid
