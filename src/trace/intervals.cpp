#include "trace/intervals.h"

#include <algorithm>
#include <utility>

namespace braid {

std::vector<Interval> merge_intervals(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin_ns < b.begin_ns; });
  std::vector<Interval> merged;
  for (const Interval& next : intervals) {
    if (next.begin_ns >= next.end_ns) {
      continue;
    }
    if (!merged.empty() && next.begin_ns <= merged.back().end_ns) {
      merged.back().end_ns = std::max(merged.back().end_ns, next.end_ns);
    } else {
      merged.push_back(next);
    }
  }
  return merged;
}

int64_t total_ns(const std::vector<Interval>& merged) {
  int64_t sum = 0;
  for (const Interval& interval : merged) {
    sum += interval.end_ns - interval.begin_ns;
  }
  return sum;
}

int64_t overlap_ns(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  int64_t sum = 0;
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const int64_t begin = std::max(a[i].begin_ns, b[j].begin_ns);
    const int64_t end = std::min(a[i].end_ns, b[j].end_ns);
    sum += std::max<int64_t>(0, end - begin);
    if (a[i].end_ns < b[j].end_ns) {
      ++i;
    } else {
      ++j;
    }
  }
  return sum;
}

}  // namespace braid
