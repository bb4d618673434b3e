#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/positions.h"
#include "ops/rope_scaling.h"

namespace braid {

/// The angles of rotary embeddings of `rotated` elements (ops/rope_scaling.h).
struct RopeAngles {
  int64_t rotated = 0;
  int64_t sequence = 0;
  double theta = 10000.0;
  bool inverse = false;
  TokenPositions positions = {};
  RopeScaling scaling = {};
};

/// Cosine and sine of every angle, times the amplitude, made once per spec; the sine is negated for
/// the inverse. Angles and functions are in double: at position 1e5 an angle in float would have an
/// error of 0.004.
template <class T>
struct RopeTable {
  std::vector<T> cosine;  // [sequence, rotated / 2]
  std::vector<T> sine;    // [sequence, rotated / 2]

  explicit RopeTable(const RopeAngles& angles) {
    const int64_t pairs = angles.rotated / 2;
    const auto elems = static_cast<size_t>(angles.sequence * pairs);
    cosine.reserve(elems);
    sine.reserve(elems);
    // Once per pair: a power takes longer than all other work of an element.
    const std::vector<double> frequencies =
        rope_frequencies(angles.rotated, angles.theta, angles.scaling);
    const double amplitude = rope_amplitude(angles.scaling);
    for (int64_t token = 0; token < angles.sequence; ++token) {
      const auto position = static_cast<double>(angles.positions.of(token));
      for (const double frequency : frequencies) {
        const double angle = position * frequency;
        cosine.push_back(static_cast<T>(amplitude * std::cos(angle)));
        const double turned = amplitude * std::sin(angle);
        sine.push_back(static_cast<T>(angles.inverse ? -turned : turned));
      }
    }
  }
};

}  // namespace braid
