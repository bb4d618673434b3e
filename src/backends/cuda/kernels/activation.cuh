#pragma once

#include "backends/cuda/kernels/swiglu.cuh"

// The formulas of the other activation functions, for every kernel that computes them; as those of
// swiglu, in fp32 on elements as stored, with each result rounded once.
namespace braid {

// gelu with the tanh approximation is x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the same
// function as 0.5 x (1 + tanh(u)) without its cancellation for negative x.
inline constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;
inline constexpr float kCubic = 0.044715f;

template <class T>
struct Gelu {
  __device__ float operator()(float x) const {
    return x * sigmoid<T>(kTwoSqrtTwoOverPi * (x + kCubic * x * x * x));
  }
};

template <class T>
struct GeluBackward {
  __device__ float operator()(float x, float dy) const {
    const float s = sigmoid<T>(kTwoSqrtTwoOverPi * (x + kCubic * x * x * x));
    return dy * (s + x * s * (1.0f - s) * kTwoSqrtTwoOverPi * (1.0f + 3.0f * kCubic * x * x));
  }
};

template <class T>
struct Geglu {
  __device__ float operator()(GateUp<float> x) const { return Gelu<T>{}(x.gate) * x.up; }
};

template <class T>
struct GegluBackward {
  __device__ GateUp<float> operator()(GateUp<float> x, float dy) const {
    return {.gate = GeluBackward<T>{}(x.gate, dy * x.up), .up = dy * Gelu<T>{}(x.gate)};
  }
};

/// max(x, 0), written so that NaN is preserved.
__device__ inline float positive_part(float x) {
  return x < 0.0f ? 0.0f : x;
}

template <class T>
struct Relu2 {
  __device__ float operator()(float x) const { return positive_part(x) * positive_part(x); }
};

template <class T>
struct Relu2Backward {
  __device__ float operator()(float x, float dy) const { return dy * 2.0f * positive_part(x); }
};

}  // namespace braid
