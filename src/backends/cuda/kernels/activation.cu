#include "ops/activation.h"

#include "backends/cuda/kernels/elementwise_map.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/swiglu.cuh"

// All of them are maps over elements, or over pairs of gate and up; rows do not matter.
namespace braid {
namespace {

// gelu with the tanh approximation is x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the same
// function as 0.5 x (1 + tanh(u)) without its cancellation for negative x.
constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

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

/// max(x, 0), written so that NaN is preserved.
__device__ float positive_part(float x) {
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

template <template <class> class Function>
CudaKernel make_map(const OpSpec& spec) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [count]<class T>() -> CudaKernel {
    return {.launch = [count](const CudaKernelArgs& args) {
      launch_map<false>(
          Function<T>{},
          MapArgs<T, T>{.a = args.data<const T>(0), .out = args.data<T>(1), .count = count},
          args.stream);
    }};
  });
}

template <template <class> class Function>
CudaKernel make_map_backward(const OpSpec& spec) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [count]<class T>() -> CudaKernel {
    return {.launch = [count](const CudaKernelArgs& args) {
      launch_map<true>(Function<T>{},
                       MapArgs<T, T>{.a = args.data<const T>(0),
                                     .b = args.data<const T>(1),
                                     .out = args.data<T>(2),
                                     .count = count},
                       args.stream);
    }};
  });
}

}  // namespace

CudaKernel make_cuda_swiglu(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[1].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [count]<class T>() -> CudaKernel {
    return {.launch = [count](const CudaKernelArgs& args) {
      launch_map<false>(
          Swiglu<T>{},
          MapArgs<GateUp<T>, T>{
              .a = args.data<const GateUp<T>>(0), .out = args.data<T>(1), .count = count},
          args.stream);
    }};
  });
}

CudaKernel make_cuda_swiglu_backward(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[1].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [count]<class T>() -> CudaKernel {
    return {.launch = [count](const CudaKernelArgs& args) {
      launch_map<true>(SwigluBackward<T>{},
                       MapArgs<GateUp<T>, GateUp<T>, T>{.a = args.data<const GateUp<T>>(0),
                                                        .b = args.data<const T>(1),
                                                        .out = args.data<GateUp<T>>(2),
                                                        .count = count},
                       args.stream);
    }};
  });
}

CudaKernel make_cuda_gelu(const OpSpec& spec, CudaContext& /*context*/) {
  return make_map<Gelu>(spec);
}

CudaKernel make_cuda_gelu_backward(const OpSpec& spec, CudaContext& /*context*/) {
  return make_map_backward<GeluBackward>(spec);
}

CudaKernel make_cuda_relu2(const OpSpec& spec, CudaContext& /*context*/) {
  return make_map<Relu2>(spec);
}

CudaKernel make_cuda_relu2_backward(const OpSpec& spec, CudaContext& /*context*/) {
  return make_map_backward<Relu2Backward>(spec);
}

}  // namespace braid
