#pragma once

#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/ptx.cuh"

// The formulas of swiglu, for every kernel that computes it. Arithmetic in fp32 on elements as
// stored, each result rounded once. For bf16 the exponential is the hardware's (relative error
// 2^-22, far below the rounding of the result); for f32 it is expf.
namespace braid {

inline constexpr float kLog2E = 1.4426950408889634f;

/// 1 / (1 + exp(-x)) for results of type T.
template <class T>
__device__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(1.0f, 1.0f + ptx::exp2_approx(-kLog2E * x));
  } else {
    return 1.0f / (1.0f + expf(-x));
  }
}

/// Two adjacent elements of gate_up [N,2F], or of its gradient. Aligned like T.
template <class T>
struct GateUp {
  T gate;
  T up;
};

template <class T>
__device__ GateUp<float> widen(GateUp<T> x) {
  return {.gate = widen(x.gate), .up = widen(x.up)};
}

/// Rounds both; T is a GateUp.
template <class T>
__device__ T narrow(GateUp<float> x) {
  using Elem = decltype(T::gate);
  return {.gate = narrow<Elem>(x.gate), .up = narrow<Elem>(x.up)};
}

template <class T>
struct Swiglu {
  __device__ float operator()(GateUp<float> x) const { return x.gate * sigmoid<T>(x.gate) * x.up; }
};

template <class T>
struct SwigluBackward {
  __device__ GateUp<float> operator()(GateUp<float> x, float dy) const {
    const float s = sigmoid<T>(x.gate);
    const float silu = x.gate * s;
    return {.gate = dy * x.up * (s + silu * (1.0f - s)), .up = dy * silu};
  }
};

}  // namespace braid
