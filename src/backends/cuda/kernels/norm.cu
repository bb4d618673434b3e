#include "ops/norm.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/norm.cuh"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "ops/attributes.h"

// One block per row, the row in registers: memory is read and written once. Statistics in fp32 over
// the rounded sum (add_ forms), variance in a second pass over the registers as on the CPU. Bitwise
// repeatable: the order of summation depends only on C.
namespace braid {
namespace {

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

/// Of elements [0, min(V, valid)), as bits of a float, which order as magnitudes do.
template <class T, int V>
__device__ uint32_t largest_magnitude(const DeviceVector<T, V>& y, int64_t valid) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    most = max(most, i < valid ? __float_as_uint(widen(y.elems[i])) & 0x7FFFFFFFu : 0u);
  }
  return most;
}

/// All threads of the grid call it. Warps are spread over the numbers, of which a reader takes the
/// largest: one alone would make them wait for each other.
__device__ void raise_magnitude(uint32_t* magnitudes, uint32_t of_thread) {
  const uint32_t most = __reduce_max_sync(0xFFFFFFFFu, of_thread);
  const unsigned warp = blockIdx.x * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
  if (threadIdx.x % kWarpSize == 0) {
    atomicMax(magnitudes + warp % kQuantizeMagnitudes, most);
  }
}

/// Each thread holds K vectors of V elements, `blockDim.x * V` apart.
template <bool kCentred, bool kAligned, bool kStoresY, int K, class T>
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

  const bool makes_y = kStoresY || args.magnitudes != nullptr;
  uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int64_t c = column_of(k);
    if (c < args.width && makes_y) {
      const auto w = load_vector<V, kAligned>(args.w + c, args.width - c);
      DeviceVector<T, V> b;
      if constexpr (kCentred) {
        b = load_vector<V, kAligned>(args.b + c, args.width - c);
      }
      const auto y = normed<kCentred>(x[k], NormOfRow{mean, rstd, args.offset}, w, b);
      if constexpr (kStoresY) {
        store_vector<kAligned>(args.y + at_row + c, y, args.width - c);
      } else {
        most = max(most, largest_magnitude(y, kAligned ? V : args.width - c));
      }
    }
  }
  if (!kStoresY && makes_y) {
    raise_magnitude(args.magnitudes, most);
  }
  if (threadIdx.x == 0) {
    if constexpr (kCentred) {
      args.mean[row] = mean;
    }
    args.rstd[row] = rstd;
  }
}

template <bool kCentred, bool kAligned, bool kStoresY, class T>
void launch_form(const NormForwardArgs<T>& args, cudaStream_t stream) {
  const int64_t vectors = ceil_div(args.width, kVectorElems<T>);
  const auto threads_for = [vectors](int64_t per_thread) {
    return static_cast<unsigned>(ceil_div(vectors, per_thread * kWarpSize) * kWarpSize);
  };
  const unsigned grid = grid_of(args.rows);
  // Blocks of up to 128 threads, whose barriers are cheap, with as many loads in flight as this
  // needs.
  if (threads_for(2) <= 128) {
    norm_forward_kernel<kCentred, kAligned, kStoresY, 2><<<grid, threads_for(2), 0, stream>>>(args);
  } else {
    norm_forward_kernel<kCentred, kAligned, kStoresY, 4><<<grid, threads_for(4), 0, stream>>>(args);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <bool kStoresY, class T>
void launch_any_form(bool centred, const NormForwardArgs<T>& args, cudaStream_t stream) {
  const bool is_aligned =
      args.width % kVectorElems<T> == 0 &&
      all_aligned(16, {args.x, args.residual, args.w, args.b, args.sum, args.y});
  const auto launch = centred ? (is_aligned ? launch_form<true, true, kStoresY, T>
                                            : launch_form<true, false, kStoresY, T>)
                              : (is_aligned ? launch_form<false, true, kStoresY, T>
                                            : launch_form<false, false, kStoresY, T>);
  launch(args, stream);
}

CudaKernel make_forward(const OpSpec& spec, const NormForm& form) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t width = spec.operands[0].shape[1];
  const auto attributes = attributes_of<NormAttributes>(spec);
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    check_norm_width<T>(spec, width);
    return {.launch = [=](const CudaKernelArgs& args) {
      auto o = norm_operands<T>(form, args);
      o.rows = rows;
      o.width = width;
      o.epsilon = static_cast<float>(attributes.epsilon);
      o.offset = static_cast<float>(attributes.offset.weight_offset);
      launch_any_form<true>(form.centred, o, args.stream);
    }};
  });
}

}  // namespace

void launch_norm_statistics(bool centred, const NormForwardArgs<Bf16>& args, cudaStream_t stream) {
  launch_any_form<false>(centred, args, stream);
}

CudaKernel make_cuda_rmsnorm(const OpSpec& spec, CudaContext& /*context*/) {
  return make_forward(spec, {});
}

CudaKernel make_cuda_add_rmsnorm(const OpSpec& spec, CudaContext& /*context*/) {
  return make_forward(spec, {.adds = true});
}

CudaKernel make_cuda_layernorm(const OpSpec& spec, CudaContext& /*context*/) {
  return make_forward(spec, {.centred = true});
}

CudaKernel make_cuda_add_layernorm(const OpSpec& spec, CudaContext& /*context*/) {
  return make_forward(spec, {.centred = true, .adds = true});
}

}  // namespace braid
