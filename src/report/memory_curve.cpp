#include "report/memory_curve.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/errors.h"

namespace braid {
namespace {

using Bytes = std::array<int64_t, kNumBufferRoles>;

struct Use {
  int64_t first_ns = std::numeric_limits<int64_t>::max();
  int64_t last_ns = -1;
};

std::vector<Use> uses_of(const Program& program, const RankTimeline& timeline) {
  std::vector<Use> uses(program.buffers.size());
  for (const TimelineTask& ran : timeline.tasks) {
    check(ran.task < program.tasks.size(), "timeline of rank {}: task {} of {}", timeline.rank,
          ran.task, program.tasks.size());
    for (const BufferRange& range : program.operands_of(program.tasks[ran.task])) {
      Use& use = uses[range.buffer.index()];
      use.first_ns = std::min(use.first_ns, ran.start_ns);
      use.last_ns = std::max(use.last_ns, ran.end_ns);
    }
  }
  return uses;
}

struct Change {
  int64_t time_ns;
  int64_t bytes;
  size_t role;
};

std::vector<Change> changes_of(const Program& program, const std::vector<Use>& uses) {
  std::vector<Change> changes;
  for (size_t i = 0; i < uses.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    const Use& use = uses[i];
    if (use.last_ns <= use.first_ns || buffer.lifetime != Lifetime::kStep ||
        buffer.placement == Placement::kHost) {
      continue;
    }
    const int64_t bytes = (buffer.size_bytes() + kBufferAlignmentBytes - 1) /
                          kBufferAlignmentBytes * kBufferAlignmentBytes;
    const auto role = static_cast<size_t>(buffer.role);
    changes.push_back({use.first_ns, bytes, role});
    changes.push_back({use.last_ns, -bytes, role});
  }
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return a.time_ns < b.time_ns; });
  return changes;
}

struct Point {
  int64_t time_ns = 0;
  Bytes live{};

  int64_t total() const { return std::accumulate(live.begin(), live.end(), int64_t{0}); }
};

/// The live bytes after all changes at each time.
std::vector<Point> points_of(const std::vector<Change>& changes) {
  std::vector<Point> points = {{}};
  for (const Change& change : changes) {
    if (change.time_ns > points.back().time_ns) {
      points.push_back({change.time_ns, points.back().live});
    }
    points.back().live.at(change.role) += change.bytes;
  }
  return points;
}

/// One point for each of `num_bins` equal parts of the time: the one with the most live bytes.
std::vector<Point> thin_out(const std::vector<Point>& points, size_t num_bins) {
  if (points.size() <= num_bins) {
    return points;
  }
  const int64_t bin_ns = points.back().time_ns / static_cast<int64_t>(num_bins) + 1;
  std::vector<Point> kept;
  for (const Point& point : points) {
    if (kept.empty() || point.time_ns / bin_ns != kept.back().time_ns / bin_ns) {
      kept.push_back(point);
    } else if (point.total() > kept.back().total()) {
      kept.back() = point;
    }
  }
  return kept;
}

}  // namespace

MemoryCurve memory_curve(const Program& program, const RankTimeline& timeline,
                         const MemoryPlan& plan, size_t max_points) {
  const std::vector<Point> points = points_of(changes_of(program, uses_of(program, timeline)));
  MemoryCurve curve;
  curve.rank = timeline.rank;
  curve.persistent_bytes = plan.persistent_bytes;
  curve.step_bytes = plan.step_bytes;
  for (const Point& point : points) {
    curve.high_bytes = std::max(curve.high_bytes, point.total());
  }
  for (const Point& point : thin_out(points, max_points)) {
    curve.time_ns.push_back(point.time_ns);
    for (size_t role = 0; role < kNumBufferRoles; ++role) {
      curve.live_bytes.at(role).push_back(point.live.at(role));
    }
  }
  return curve;
}

}  // namespace braid
