#include "memory/max_live.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace braid {
namespace {

struct Interval {
  uint32_t first;
  uint32_t last;
};

/// First and last moment at which a buffer is used, given the time of each task.
Interval interval_of(const LiveRanges& ranges, size_t buffer,
                     const std::vector<std::vector<uint32_t>>& times) {
  Interval interval{UINT32_MAX, 0};
  for (uint32_t entry = ranges.first_accesses(buffer); entry != LiveRanges::kNone;
       entry = ranges.accesses(entry).next) {
    const LiveRanges::Accesses& accesses = ranges.accesses(entry);
    interval.first = std::min(interval.first, times[accesses.stream][accesses.first]);
    interval.last = std::max(interval.last, times[accesses.stream][accesses.last]);
  }
  return interval;
}

MaxLive max_live_at_times(const Program& program, const LiveRanges& ranges,
                          std::span<const int64_t> sizes_bytes,
                          const std::vector<std::vector<uint32_t>>& times) {
  std::vector<int64_t> change_bytes(program.tasks.size() + 1, 0);
  for (size_t buffer = 0; buffer < ranges.num_buffers(); ++buffer) {
    if (ranges.is_used(buffer)) {
      const Interval interval = interval_of(ranges, buffer, times);
      change_bytes[interval.first] += sizes_bytes[buffer];
      change_bytes[interval.last + 1] -= sizes_bytes[buffer];
    }
  }
  MaxLive result;
  size_t peak_time = 0;
  int64_t live_bytes = 0;
  for (size_t time = 0; time < change_bytes.size(); ++time) {
    live_bytes += change_bytes[time];
    if (live_bytes > result.bytes) {
      result.bytes = live_bytes;
      peak_time = time;
    }
  }
  for (size_t buffer = 0; buffer < ranges.num_buffers(); ++buffer) {
    if (ranges.is_used(buffer)) {
      const Interval interval = interval_of(ranges, buffer, times);
      if (interval.first <= peak_time && peak_time <= interval.last) {
        result.by_role[static_cast<size_t>(program.buffers[buffer].role)] += sizes_bytes[buffer];
      }
    }
  }
  return result;
}

std::vector<std::vector<uint32_t>> program_times(const TaskOrder& order) {
  std::vector<std::vector<uint32_t>> times(order.num_streams());
  for (size_t stream = 0; stream < order.num_streams(); ++stream) {
    const std::span<const uint32_t> tasks = order.tasks_of(stream);
    times[stream].assign(tasks.begin(), tasks.end());
  }
  return times;
}

}  // namespace

MaxLive find_max_live(const Program& program, const TaskOrder& order, const LiveRanges& ranges,
                      std::span<const int64_t> sizes_bytes) {
  MaxLive best = max_live_at_times(program, ranges, sizes_bytes, program_times(order));
  if (order.num_streams() < 2) {
    return best;
  }
  std::vector<size_t> priority(order.num_streams());
  std::iota(priority.begin(), priority.end(), size_t{0});
  std::stable_sort(priority.begin(), priority.end(), [&](size_t a, size_t b) {
    return order.tasks_of(a).size() > order.tasks_of(b).size();
  });
  for (int pass = 0; pass < 2; ++pass) {
    const MaxLive other =
        max_live_at_times(program, ranges, sizes_bytes, order.run_in_order(priority));
    if (other.bytes > best.bytes) {
      best = other;
    }
    std::reverse(priority.begin(), priority.end());
  }
  return best;
}

MaxLive live_together(const Program& program, std::span<const uint32_t> buffers,
                      std::span<const int64_t> sizes_bytes) {
  MaxLive result;
  for (const uint32_t buffer : buffers) {
    result.bytes += sizes_bytes[buffer];
    result.by_role[static_cast<size_t>(program.buffers[buffer].role)] += sizes_bytes[buffer];
  }
  return result;
}

}  // namespace braid
