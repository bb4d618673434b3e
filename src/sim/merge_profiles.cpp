#include "sim/merge_profiles.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "base/errors.h"
#include "base/text.h"
#include "sim/op_family.h"

namespace braid {
namespace {

void require_equal(std::string_view what, const std::string& older, const std::string& newer) {
  if (older != newer) {
    throw_data_error("profiles that differ cannot be merged: {} is {} and {}", what, quote(older),
                     quote(newer));
  }
}

void check_same_device(const Profile& older, const Profile& newer) {
  require_equal("device", older.device_kind, newer.device_kind);
  require_equal("origin.device", older.origin.device, newer.origin.device);
  require_equal("origin.software", older.origin.software, newer.origin.software);
  require_equal("origin.threads", std::to_string(older.origin.threads),
                std::to_string(newer.origin.threads));
}

/// `older` with the points of `newer`: they replace those with the same key, or are appended.
std::vector<TaskPoint> merge_tasks(std::vector<TaskPoint> points,
                                   const std::vector<TaskPoint>& newer) {
  struct Hash {
    size_t operator()(const OpSpec& spec) const { return hash_value(spec); }
  };
  std::unordered_map<OpSpec, size_t, Hash> index;
  for (size_t i = 0; i < points.size(); ++i) {
    index.emplace(timing_key(points[i].spec), i);
  }
  for (const TaskPoint& point : newer) {
    const auto [found, is_new] = index.emplace(timing_key(point.spec), points.size());
    if (is_new) {
      points.push_back(point);
    } else {
      points[found->second] = point;
    }
  }
  return points;
}

/// The same for point types with few points, by linear search.
template <class Point, class SameQuestion>
std::vector<Point> merge_points(std::vector<Point> points, const std::vector<Point>& newer,
                                const SameQuestion& same_question) {
  for (const Point& point : newer) {
    const auto found = std::find_if(points.begin(), points.end(), [&](const Point& older) {
      return same_question(older, point);
    });
    if (found == points.end()) {
      points.push_back(point);
    } else {
      *found = point;
    }
  }
  return points;
}

}  // namespace

Profile merge_profiles(const Profile& older, const Profile& newer) {
  check_same_device(older, newer);
  const auto same_bytes = [](const CopyPoint& a, const CopyPoint& b) { return a.bytes == b.bytes; };
  const auto same_call = [](const CommPoint& a, const CommPoint& b) { return a.spec == b.spec; };
  Profile merged = newer;
  merged.tasks = merge_tasks(older.tasks, newer.tasks);
  merged.to_device = merge_points(older.to_device, newer.to_device, same_bytes);
  merged.to_host = merge_points(older.to_host, newer.to_host, same_bytes);
  merged.communication = merge_points(older.communication, newer.communication, same_call);
  for (const auto& [dtype, rate] : older.peak_flops_per_s) {
    merged.peak_flops_per_s.emplace(dtype, rate);
  }
  if (!merged.memory_bytes_per_s) {
    merged.memory_bytes_per_s = older.memory_bytes_per_s;
  }
  if (!merged.contention) {
    merged.contention = older.contention;
  }
  return merged;
}

}  // namespace braid
