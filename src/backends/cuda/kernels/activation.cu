#include "ops/activation.h"

#include "backends/cuda/kernels/elementwise_map.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/ptx.cuh"

// Arithmetic in fp32. For bf16 the exponential is the hardware's (relative error 2^-22, far below
// the rounding of the result); for f32 it is expf.
namespace braid {
namespace {

// gelu with the tanh approximation is x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the same
// function as 0.5 x (1 + tanh(u)) without its cancellation for negative x.
constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;
constexpr float kLog2E = 1.4426950408889634f;

template <class T>
__device__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(1.0f, 1.0f + ptx::exp2_approx(-kLog2E * x));
  } else {
    return 1.0f / (1.0f + expf(-x));
  }
}

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
struct SwigluArgs {
  const T* gate_up = nullptr;  // [N,2F]
  const T* dy = nullptr;       // [N,F], backward
  T* out = nullptr;            // [N,F]; backward: d_gate_up [N,2F]
  int64_t width = 0;           // F
  unsigned chunks = 1;         // of a row
};

constexpr int kUnroll = 2;

template <class T, int V>
__device__ DeviceVector<T, V> swiglu(const DeviceVector<T, V>& gate, const DeviceVector<T, V>& up) {
  DeviceVector<T, V> y;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float g = widen(gate.elems[i]);
    y.elems[i] = narrow<T>(g * sigmoid<T>(g) * widen(up.elems[i]));
  }
  return y;
}

/// Replaces gate and up by their gradients.
template <class T, int V>
__device__ void swiglu_backward(DeviceVector<T, V>& gate, DeviceVector<T, V>& up,
                                const DeviceVector<T, V>& dy) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float g = widen(gate.elems[i]);
    const float d = widen(dy.elems[i]);
    const float s = sigmoid<T>(g);
    const float silu = g * s;
    gate.elems[i] = narrow<T>(d * widen(up.elems[i]) * (s + silu * (1.0f - s)));
    up.elems[i] = narrow<T>(d * silu);
  }
}

template <bool kBackward, bool kAligned, class T>
__global__ void __launch_bounds__(256) swiglu_kernel(SwigluArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  const int64_t row = blockIdx.x / args.chunks;
  const int64_t chunk = blockIdx.x % args.chunks;
  const int64_t first = (chunk * kUnroll * blockDim.x + threadIdx.x) * V;
  const T* const gates = args.gate_up + row * 2 * args.width;
  DeviceVector<T, V> gate[kUnroll];
  DeviceVector<T, V> up[kUnroll];
  DeviceVector<T, V> dy[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t c = first + u * static_cast<int64_t>(blockDim.x) * V;
    if (c < args.width) {
      gate[u] = load_vector<V, kAligned>(gates + c, args.width - c);
      up[u] = load_vector<V, kAligned>(gates + args.width + c, args.width - c);
      if constexpr (kBackward) {
        dy[u] = load_vector<V, kAligned>(args.dy + row * args.width + c, args.width - c);
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t c = first + u * static_cast<int64_t>(blockDim.x) * V;
    if (c < args.width) {
      if constexpr (kBackward) {
        swiglu_backward(gate[u], up[u], dy[u]);
        T* const out = args.out + row * 2 * args.width + c;
        store_vector<kAligned>(out, gate[u], args.width - c);
        store_vector<kAligned>(out + args.width, up[u], args.width - c);
      } else {
        store_vector<kAligned>(args.out + row * args.width + c, swiglu(gate[u], up[u]),
                               args.width - c);
      }
    }
  }
}

template <bool kBackward, class T>
CudaKernel swiglu_kernel_of(int64_t rows, int64_t width) {
  const RowChunks chunks(ceil_div(width, kVectorElems<T>), kUnroll);
  const unsigned grid = grid_of(rows * chunks.chunks);
  return {.launch = [=](const CudaKernelArgs& args) {
    const SwigluArgs<T> o{.gate_up = args.data<const T>(0),
                          .dy = kBackward ? args.data<const T>(1) : nullptr,
                          .out = args.data<T>(kBackward ? 2 : 1),
                          .width = width,
                          .chunks = chunks.chunks};
    if (width % kVectorElems<T> == 0 && all_aligned(16, {o.gate_up, o.dy, o.out})) {
      swiglu_kernel<kBackward, true><<<grid, chunks.threads, 0, args.stream>>>(o);
    } else {
      swiglu_kernel<kBackward, false><<<grid, chunks.threads, 0, args.stream>>>(o);
    }
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

template <bool kBackward>
CudaKernel make_swiglu(const OpSpec& spec) {
  const Shape half = spec.operands[1].shape;  // y or dy
  return dispatch_cuda_dtype(
      spec, 0, [&]<class T>() { return swiglu_kernel_of<kBackward, T>(half[0], half[1]); });
}

}  // namespace

CudaKernel make_cuda_swiglu(const OpSpec& spec, CudaContext& /*context*/) {
  return make_swiglu<false>(spec);
}

CudaKernel make_cuda_swiglu_backward(const OpSpec& spec, CudaContext& /*context*/) {
  return make_swiglu<true>(spec);
}

CudaKernel make_cuda_gelu(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [count]<class T>() -> CudaKernel {
    return {.launch = [count](const CudaKernelArgs& args) {
      launch_map<false>(
          Gelu<T>{},
          MapArgs<T, T>{.a = args.data<const T>(0), .out = args.data<T>(1), .count = count},
          args.stream);
    }};
  });
}

CudaKernel make_cuda_gelu_backward(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [count]<class T>() -> CudaKernel {
    return {.launch = [count](const CudaKernelArgs& args) {
      launch_map<true>(GeluBackward<T>{},
                       MapArgs<T, T>{.a = args.data<const T>(0),
                                     .b = args.data<const T>(1),
                                     .out = args.data<T>(2),
                                     .count = count},
                       args.stream);
    }};
  });
}

}  // namespace braid
