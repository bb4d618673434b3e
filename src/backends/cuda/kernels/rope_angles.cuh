#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/positions.h"
#include "ops/rope_scaling.h"

/// Angles of rotary embeddings, of the pairs of one token: the position times the frequency of the
/// pair (ops/rope_scaling.h). In float its error would be 0.004 at position 1e5, so it is computed
/// in half turns in double, whole turns are dropped exactly, and only the rest (in [-1, 1]) becomes
/// a float for sincospi: the error stays below 4e-7 at every position.
namespace braid {

inline constexpr int kMaxPairs = 256;  // R up to 512

/// Half turns per position of each pair, negative for the inverse, and what cosines and sines are
/// multiplied by. A kernel parameter, so that nothing must be stored.
struct HalfTurns {
  double per_position[kMaxPairs];
  float amplitude;
};

/// Of `rotated` elements, at most 2 * kMaxPairs.
struct TurnOptions {
  int64_t rotated = 0;
  double theta = 10000.0;
  RopeScaling scaling = {};
  bool inverse = false;
};

inline HalfTurns half_turns_of(const TurnOptions& options) {
  HalfTurns turns{};
  constexpr double kPi = 3.14159265358979323846;
  const std::vector<double> frequencies =
      rope_frequencies(options.rotated, options.theta, options.scaling);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    turns.per_position[i] = (options.inverse ? -frequencies[i] : frequencies[i]) / kPi;
  }
  turns.amplitude = static_cast<float>(rope_amplitude(options.scaling));
  return turns;
}

__device__ inline double position_of(const TokenPositions& at, int64_t token) {
  return static_cast<double>(token < at.split ? at.first_begin + token
                                              : at.second_begin + token - at.split);
}

/// The position of row `row`; with documents, from the start of its own (ops/documents.h).
__device__ inline double row_position(const TokenPositions& at, int64_t sequence,
                                      const int32_t* starts, int64_t row) {
  const double position = position_of(at, row % sequence);
  return starts == nullptr ? position : position - starts[row];
}

/// Cosine and sine, times the amplitude.
__device__ inline float2 angle_of(const HalfTurns& turns, double position, int pair) {
  const double half_turns = position * turns.per_position[pair];
  const double rest = half_turns - 2.0 * rint(0.5 * half_turns);
  float2 angle;
  sincospif(static_cast<float>(rest), &angle.y, &angle.x);
  angle.x *= turns.amplitude;
  angle.y *= turns.amplitude;
  return angle;
}

}  // namespace braid
