#include "sim/interpolate.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace braid {
namespace {

/// Merges points of one size into one with their mean duration.
std::vector<SizePoint> merge_equal_sizes(std::vector<SizePoint> points) {
  std::sort(points.begin(), points.end(),
            [](const SizePoint& a, const SizePoint& b) { return a.size < b.size; });
  std::vector<SizePoint> merged;
  for (size_t begin = 0, end = 0; begin < points.size(); begin = end) {
    SizePoint sum{.size = points[begin].size};
    for (end = begin; end < points.size() && points[end].size == points[begin].size; ++end) {
      sum.ns += points[end].ns;
      sum.model_ns += points[end].model_ns;
    }
    const auto count = static_cast<double>(end - begin);
    merged.push_back({sum.size, sum.ns / count, sum.model_ns / count});
  }
  return merged;
}

/// Replaces blocks of points that fall by their mean, so that the curve never falls.
void make_monotone(std::vector<SizePoint>& points) {
  struct Block {
    double sum;
    size_t count;
    double mean() const { return sum / static_cast<double>(count); }
  };
  std::vector<Block> blocks;
  for (const SizePoint& point : points) {
    blocks.push_back({point.ns, 1});
    while (blocks.size() > 1 && blocks[blocks.size() - 2].mean() > blocks.back().mean()) {
      const Block last = blocks.back();
      blocks.pop_back();
      blocks.back().sum += last.sum;
      blocks.back().count += last.count;
    }
  }
  size_t next = 0;
  for (const Block& block : blocks) {
    for (size_t i = 0; i < block.count; ++i) {
      points[next++].ns = block.mean();
    }
  }
}

double line(const SizePoint& a, const SizePoint& b, double size) {
  return a.ns + (b.ns - a.ns) * (size - a.size) / (b.size - a.size);
}

double squared_distance(const Coordinates& a, const Coordinates& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return sum;
}

}  // namespace

SizeCurve::SizeCurve(std::vector<SizePoint> points)
    : points_(merge_equal_sizes(std::move(points))) {
  check(!points_.empty(), "nothing was measured");
  make_monotone(points_);
}

double SizeCurve::ns(double size, double model_ns) const {
  if (!covers(size)) {
    const SizePoint& end = size < points_.front().size ? points_.front() : points_.back();
    return model_ns * end.ns / end.model_ns;
  }
  const auto at =
      std::lower_bound(points_.begin(), points_.end(), size,
                       [](const SizePoint& point, double value) { return point.size < value; });
  return at->size == size ? at->ns : line(*(at - 1), *at, size);
}

bool SizeCurve::covers(double size) const {
  return size >= points_.front().size && size <= points_.back().size;
}

ScatteredRatios::ScatteredRatios(std::vector<ScatteredPoint> points) : points_(std::move(points)) {
  check(!points_.empty(), "nothing was measured");
  low_ = high_ = points_.front().at;
  for (const ScatteredPoint& point : points_) {
    for (size_t i = 0; i < low_.size(); ++i) {
      low_[i] = std::min(low_[i], point.at[i]);
      high_[i] = std::max(high_[i], point.at[i]);
    }
  }
}

double ScatteredRatios::ratio(const Coordinates& at) const {
  constexpr double kSamePlace = 1e-18;
  double sum = 0;
  double weights = 0;
  double sum_here = 0;
  double num_here = 0;
  for (const ScatteredPoint& point : points_) {
    const double distance = squared_distance(point.at, at);
    if (distance < kSamePlace) {
      sum_here += point.log_ratio;
      num_here += 1;
      continue;
    }
    const double weight = 1.0 / (distance * distance);
    sum += weight * point.log_ratio;
    weights += weight;
  }
  return std::exp(num_here > 0 ? sum_here / num_here : sum / weights);
}

bool ScatteredRatios::covers(const Coordinates& at) const {
  for (size_t i = 0; i < at.size(); ++i) {
    if (at[i] < low_[i] || at[i] > high_[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace braid
