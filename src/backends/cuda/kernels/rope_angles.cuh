#pragma once

#include <cmath>
#include <cstdint>

#include "ops/positions.h"

/// Angles of rotary embeddings, of the pairs of one token. An angle is position * theta^(-2i/R) of
/// pair i of R elements. In float its error would be 0.004 at position 1e5, so it is computed in
/// half turns in double, whole turns are dropped exactly, and only the rest (in [-1, 1]) becomes a
/// float for sincospi: the error stays below 4e-7 at every position.
namespace braid {

inline constexpr int kMaxPairs = 256;  // R up to 512

/// Half turns per position of each pair; negative for the inverse. A kernel parameter, so that
/// nothing must be stored.
struct HalfTurns {
  double per_position[kMaxPairs];
};

inline HalfTurns half_turns_of(int64_t rotated, double theta, bool inverse) {
  HalfTurns turns{};
  constexpr double kPi = 3.14159265358979323846;
  for (int64_t i = 0; i < rotated / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(rotated);
    const double radians = std::pow(theta, exponent);
    turns.per_position[i] = (inverse ? -radians : radians) / kPi;
  }
  return turns;
}

__device__ inline double position_of(const TokenPositions& at, int64_t token) {
  return static_cast<double>(token < at.split ? at.first_begin + token
                                              : at.second_begin + token - at.split);
}

/// Cosine and sine.
__device__ inline float2 angle_of(const HalfTurns& turns, double position, int pair) {
  const double half_turns = position * turns.per_position[pair];
  const double rest = half_turns - 2.0 * rint(0.5 * half_turns);
  float2 angle;
  sincospif(static_cast<float>(rest), &angle.y, &angle.x);
  return angle;
}

}  // namespace braid
