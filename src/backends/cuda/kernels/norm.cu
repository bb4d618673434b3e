#include "ops/norm.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"

// One block per row, the row in registers: memory is read and written once. Statistics in fp32 over
// the rounded sum (add_ forms), variance in a second pass over the registers as on the CPU. Bitwise
// repeatable: the order of summation depends only on C.
namespace braid {
namespace {

/// Pointers are null if an op lacks the operand.
template <class T>
struct NormForwardArgs {
  const T* x = nullptr;         // [N,C]
  const T* residual = nullptr;  // [N,C]
  const T* w = nullptr;         // [C]
  const T* b = nullptr;         // [C]
  T* sum = nullptr;             // [N,C]
  T* y = nullptr;               // [N,C]
  float* mean = nullptr;        // f32 [N]
  float* rstd = nullptr;        // f32 [N]
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 0;
};

/// Over elements [0, min(V, valid)).
template <class T, int V>
__device__ float sum_of_squares(const DeviceVector<T, V>& x, float mean, int64_t valid) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float centred = i < valid ? widen(x.elems[i]) - mean : 0.0f;
    sum += centred * centred;
  }
  return sum;
}

template <class T, int V>
__device__ DeviceVector<T, V> rounded_sum(const DeviceVector<T, V>& a,
                                          const DeviceVector<T, V>& b) {
  DeviceVector<T, V> sum;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sum.elems[i] = narrow<T>(widen(a.elems[i]) + widen(b.elems[i]));
  }
  return sum;
}

/// Each thread holds K vectors of V elements, `blockDim.x * V` apart.
template <bool kCentred, bool kAligned, int K, class T>
__global__ void __launch_bounds__(1024) norm_forward_kernel(NormForwardArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  __shared__ float shared[2][kWarpSize];
  const int64_t row = blockIdx.x;
  const int64_t at_row = row * args.width;
  const auto column_of = [](int k) {
    return (k * static_cast<int64_t>(blockDim.x) + threadIdx.x) * V;
  };

  DeviceVector<T, V> x[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int64_t c = column_of(k);
    if (c < args.width) {
      x[k] = load_vector<V, kAligned>(args.x + at_row + c, args.width - c);
    }
  }
  if (args.residual != nullptr) {
    DeviceVector<T, V> residual[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t c = column_of(k);
      if (c < args.width) {
        residual[k] = load_vector<V, kAligned>(args.residual + at_row + c, args.width - c);
      }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t c = column_of(k);
      if (c < args.width) {
        x[k] = rounded_sum(x[k], residual[k]);
        store_vector<kAligned>(args.sum + at_row + c, x[k], args.width - c);
      }
    }
  }

  float mean = 0;
  if constexpr (kCentred) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column_of(k) < args.width) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          sum += widen(x[k].elems[i]);
        }
      }
    }
    mean = block_sum(sum, shared[0]) / static_cast<float>(args.width);
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int64_t c = column_of(k);
    if (c < args.width) {
      squares += sum_of_squares(x[k], mean, kAligned ? V : args.width - c);
    }
  }
  squares = block_sum(squares, shared[1]);
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(args.width) + args.epsilon);

#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int64_t c = column_of(k);
    if (c < args.width) {
      const auto w = load_vector<V, kAligned>(args.w + c, args.width - c);
      DeviceVector<T, V> b;
      if constexpr (kCentred) {
        b = load_vector<V, kAligned>(args.b + c, args.width - c);
      }
      DeviceVector<T, V> y;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float normed = (widen(x[k].elems[i]) - mean) * rstd * widen(w.elems[i]);
        y.elems[i] = narrow<T>(kCentred ? normed + widen(b.elems[i]) : normed);
      }
      store_vector<kAligned>(args.y + at_row + c, y, args.width - c);
    }
  }
  if (threadIdx.x == 0) {
    if constexpr (kCentred) {
      args.mean[row] = mean;
    }
    args.rstd[row] = rstd;
  }
}

template <bool kCentred, bool kAligned, class T>
void launch_norm_forward(const NormForwardArgs<T>& args, cudaStream_t stream) {
  const int64_t vectors = ceil_div(args.width, kVectorElems<T>);
  const auto threads_for = [vectors](int64_t per_thread) {
    return static_cast<unsigned>(ceil_div(vectors, per_thread * kWarpSize) * kWarpSize);
  };
  const unsigned grid = grid_of(args.rows);
  // Blocks of up to 128 threads, whose barriers are cheap, with as many loads in flight as this
  // needs.
  if (threads_for(2) <= 128) {
    norm_forward_kernel<kCentred, kAligned, 2><<<grid, threads_for(2), 0, stream>>>(args);
  } else {
    norm_forward_kernel<kCentred, kAligned, 4><<<grid, threads_for(4), 0, stream>>>(args);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

/// Operands in the order in which ops/norm.h lists them.
template <bool kCentred, bool kAdd, class T>
NormForwardArgs<T> forward_operands(const CudaKernelArgs& args) {
  size_t next = 0;
  NormForwardArgs<T> o;
  o.x = args.data<const T>(next++);
  o.residual = kAdd ? args.data<const T>(next++) : nullptr;
  o.w = args.data<const T>(next++);
  o.b = kCentred ? args.data<const T>(next++) : nullptr;
  o.sum = kAdd ? args.data<T>(next++) : nullptr;
  o.y = args.data<T>(next++);
  o.mean = kCentred ? args.data<float>(next++) : nullptr;
  o.rstd = args.data<float>(next++);
  return o;
}

template <bool kCentred, bool kAdd>
CudaKernel make_forward(const OpSpec& spec) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t width = spec.operands[0].shape[1];
  const double epsilon = attributes_of<NormAttributes>(spec).epsilon;
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    constexpr int64_t kMaxWidth = int64_t{4} * 1024 * kVectorElems<T>;
    check(width <= kMaxWidth, "op {}: rows of {} elements; its kernel holds up to {} in registers",
          spec.op, width, kMaxWidth);
    return {.launch = [=](const CudaKernelArgs& args) {
      auto o = forward_operands<kCentred, kAdd, T>(args);
      o.rows = rows;
      o.width = width;
      o.epsilon = static_cast<float>(epsilon);
      if (width % kVectorElems<T> == 0 &&
          all_aligned(16, {o.x, o.residual, o.w, o.b, o.sum, o.y})) {
        launch_norm_forward<kCentred, true>(o, args.stream);
      } else {
        launch_norm_forward<kCentred, false>(o, args.stream);
      }
    }};
  });
}

}  // namespace

CudaKernel make_cuda_rmsnorm(const OpSpec& spec, CudaContext& /*context*/) {
  return make_forward<false, false>(spec);
}

CudaKernel make_cuda_add_rmsnorm(const OpSpec& spec, CudaContext& /*context*/) {
  return make_forward<false, true>(spec);
}

CudaKernel make_cuda_layernorm(const OpSpec& spec, CudaContext& /*context*/) {
  return make_forward<true, false>(spec);
}

CudaKernel make_cuda_add_layernorm(const OpSpec& spec, CudaContext& /*context*/) {
  return make_forward<true, true>(spec);
}

}  // namespace braid
