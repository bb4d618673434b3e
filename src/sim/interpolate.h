#pragma once

#include <array>
#include <cstddef>
#include <vector>

/// Durations between measured points. Nothing here allocates when asked.
namespace braid {

struct SizePoint {
  double size = 0;  ///< bytes
  double ns = 0;
  double model_ns = 0;  ///< what a model, which never falls with size, says
};

/// Duration by size: straight lines between neighbouring points; beyond them what the model says,
/// times how far it was off at the nearest point. Points of one size are averaged, and where a
/// larger size was measured to be faster than a smaller one, both get their mean (pool adjacent
/// violators: Ayer et al., 1955), so the curve never falls.
class SizeCurve {
 public:
  /// Sizes and durations must be positive, and there must be a point.
  explicit SizeCurve(std::vector<SizePoint> points);

  double ns(double size, double model_ns) const;
  /// Whether `size` lies within the measured sizes.
  bool covers(double size) const;

 private:
  std::vector<SizePoint> points_;  // by size, increasing
};

/// Coordinates of a shape: logarithms of its sizes.
inline constexpr size_t kNumCoordinates = 3;
using Coordinates = std::array<double, kNumCoordinates>;

struct ScatteredPoint {
  Coordinates at{};
  double log_ratio = 0;  ///< logarithm of the factor by which a model was off here
};

/// A factor at any shape from factors at scattered shapes: the mean of their logarithms weighed by
/// distance^-4 (Shepard, 1968), exact at a point, always between the smallest and the largest.
class ScatteredRatios {
 public:
  explicit ScatteredRatios(std::vector<ScatteredPoint> points);

  double ratio(const Coordinates& at) const;
  /// Whether each coordinate lies within the measured ones.
  bool covers(const Coordinates& at) const;

 private:
  std::vector<ScatteredPoint> points_;
  Coordinates low_{};
  Coordinates high_{};
};

}  // namespace braid
