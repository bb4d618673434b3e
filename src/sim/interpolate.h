#pragma once

#include <array>
#include <cstddef>
#include <vector>

/// Durations between measured points. Queries do not allocate.
namespace braid {

struct SizePoint {
  double size = 0;  ///< bytes
  double ns = 0;
  double model_ns = 0;  ///< the duration by a model that is monotone in size
};

/// Duration by size: linear between neighbouring points; beyond them, the model times its error
/// factor at the nearest point. Points of one size are averaged. If a larger size was measured to
/// be faster than a smaller one, both get their mean (pool adjacent violators: Ayer et al., 1955),
/// so the curve never falls.
class SizeCurve {
 public:
  /// Requires positive sizes and durations, and at least one point.
  explicit SizeCurve(std::vector<SizePoint> points);

  double ns(double size, double model_ns) const;
  /// Whether `size` lies within the measured sizes.
  bool covers(double size) const;

 private:
  std::vector<SizePoint> points_;  // by size, increasing
};

/// Coordinates of a shape: logarithms of its sizes; those that it lacks are 0.
inline constexpr size_t kNumCoordinates = 4;
using Coordinates = std::array<double, kNumCoordinates>;

struct ScatteredPoint {
  Coordinates at{};
  double log_ratio = 0;  ///< logarithm of the error factor of a model at this point
};

/// Interpolates a factor between scattered shapes: the mean of the points' logarithms weighted by
/// distance^-4 (Shepard, 1968). Exact at a point, and always between the smallest and the largest
/// factor.
class ScatteredRatios {
 public:
  explicit ScatteredRatios(std::vector<ScatteredPoint> points);

  double ratio(const Coordinates& at) const;
  /// Whether each coordinate lies within the measured range.
  bool covers(const Coordinates& at) const;

 private:
  std::vector<ScatteredPoint> points_;
  Coordinates low_{};
  Coordinates high_{};
};

}  // namespace braid
