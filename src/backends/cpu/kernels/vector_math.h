#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

/// exp, tanh and the logistic function without branches or calls, so that the compiler vectorizes
/// loops over floats. float: error of at most 2 units in the last place over the whole range,
/// including denormals, infinities and NaN (tests/kernels/vector_math_test.cpp); double: the std
/// functions.
namespace braid::vector_math {

inline double exp(double x) {
  return std::exp(x);
}

/// Method: x = n ln 2 + r with |r| <= ln(2) / 2, exp(r) by a polynomial, then times 2^n in two
/// steps so that denormal results round once. Coefficients: Moshier, Cephes, expf.
inline float exp(float x) {
  constexpr float kLowest = -104.0f;  // rounds to 0
  constexpr float kHighest = 89.0f;   // rounds to infinity
  constexpr float kRoundToInt = 0x1.8p23f;
  x = x < kLowest ? kLowest : x;  // written so that NaN is preserved
  x = x > kHighest ? kHighest : x;
  const float shifted = x * 1.44269504088896341f + kRoundToInt;
  const float n = shifted - kRoundToInt;
  float r = x - n * 0.693359375f;  // ln 2 in two parts; the first product is exact
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // Signed n in the low bits of `shifted`; unsigned arithmetic, since NaN leaves any bits there.
  const uint32_t power = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRoundToInt);
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(power) >> 1);
  const float first = std::bit_cast<float>((half + 127u) << 23);
  const float second = std::bit_cast<float>((power - half + 127u) << 23);
  return p * first * second;
}

/// 1 / (1 + exp(-x)).
template <class T>
T sigmoid(T x) {
  const T e = exp(-std::abs(x));  // at most 1: neither branch overflows or cancels
  return (x < T(0) ? e : T(1)) / (T(1) + e);
}

inline double tanh(double x) {
  return std::tanh(x);
}

/// Near 0 an odd polynomial (Moshier, Cephes, tanhf), otherwise 1 - 2 / (exp(2|x|) + 1).
inline float tanh(float x) {
  const float magnitude = std::abs(x);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near_zero = p * z * magnitude + magnitude;
  const float far = 1.0f - 2.0f / (exp(2.0f * magnitude) + 1.0f);
  return std::copysign(magnitude < 0.625f ? near_zero : far, x);
}

}  // namespace braid::vector_math
