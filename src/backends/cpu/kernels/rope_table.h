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
/// the inverse. A row per token; or, with documents, per distance from the start of a document.
/// Angles and functions are in double: at position 1e5 an angle in float would have an
/// error of 0.004.
template <class T>
struct RopeTable {
  std::vector<T> cosine;  // [rows, rotated / 2]
  std::vector<T> sine;    // [rows, rotated / 2]

  explicit RopeTable(const RopeAngles& angles, bool documents = false) {
    const int64_t pairs = angles.rotated / 2;
    const int64_t rows = documents ? angles.positions.end(angles.sequence) : angles.sequence;
    const auto elems = static_cast<size_t>(rows * pairs);
    cosine.reserve(elems);
    sine.reserve(elems);
    // Once per pair: a power takes longer than all other work of an element.
    const std::vector<double> frequencies =
        rope_frequencies(angles.rotated, angles.theta, angles.scaling);
    const double amplitude = rope_amplitude(angles.scaling);
    for (int64_t row = 0; row < rows; ++row) {
      const auto position = static_cast<double>(documents ? row : angles.positions.of(row));
      for (const double frequency : frequencies) {
        const double angle = position * frequency;
        cosine.push_back(static_cast<T>(amplitude * std::cos(angle)));
        const double turned = amplitude * std::sin(angle);
        sine.push_back(static_cast<T>(angles.inverse ? -turned : turned));
      }
    }
  }
};

/// The row of a RopeTable for row `row` of an operand, which is token `token` of its sequence;
/// `starts` of documents may be null.
inline int64_t angle_row(const TokenPositions& positions, int64_t token, const int32_t* starts,
                         int64_t row) {
  return starts == nullptr ? token : positions.of(token) - starts[row];
}

}  // namespace braid
