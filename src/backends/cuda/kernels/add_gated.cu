// One block for each row; all accesses have 16 bytes per thread where rows are aligned.
#include "ops/add_gated.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/router_rows.cuh"
#include "backends/cuda/kernels/vector_rows.cuh"

namespace braid {
namespace {

template <class T>
struct GatedArgs {
  const T* a = nullptr;      // [T, C], forward only
  const T* x = nullptr;      // [T, C]
  const float* z = nullptr;  // [T]
  const T* dy = nullptr;     // [T, C], backward only
  T* y = nullptr;            // [T, C], forward only
  T* dx = nullptr;           // [T, C], backward only
  float* dz = nullptr;       // [T], backward only
  int64_t width = 0;         // C
};

template <bool kAligned, class T>
__global__ void __launch_bounds__(kRowThreads) gated_kernel(GatedArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  const int64_t begin = int64_t{blockIdx.x} * args.width;
  const float gate = sigmoid(args.z[blockIdx.x]);
  for (int64_t c = int64_t{threadIdx.x} * V; c < args.width; c += int64_t{blockDim.x} * V) {
    const auto a = load_vector<V, kAligned>(args.a + begin + c, args.width - c);
    const auto x = load_vector<V, kAligned>(args.x + begin + c, args.width - c);
    DeviceVector<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      y.elems[i] = narrow<T>(widen(a.elems[i]) + gate * widen(x.elems[i]));
    }
    store_vector<kAligned>(args.y + begin + c, y, args.width - c);
  }
}

/// The block adds up the gradient of its row's gate.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kRowThreads) gated_backward_kernel(GatedArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  __shared__ float shared[kWarpSize];
  const int64_t begin = int64_t{blockIdx.x} * args.width;
  const float gate = sigmoid(args.z[blockIdx.x]);
  float d_gate = 0.0f;
  for (int64_t c = int64_t{threadIdx.x} * V; c < args.width; c += int64_t{blockDim.x} * V) {
    const auto x = load_vector<V, kAligned>(args.x + begin + c, args.width - c);
    const auto dy = load_vector<V, kAligned>(args.dy + begin + c, args.width - c);
    DeviceVector<T, V> dx;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float d = widen(dy.elems[i]);
      // Contracted by hand: aligned and other rows must have the same bits.
      d_gate = __fmaf_rn(d, widen(x.elems[i]), d_gate);
      dx.elems[i] = narrow<T>(gate * d);
    }
    store_vector<kAligned>(args.dx + begin + c, dx, args.width - c);
  }
  d_gate = block_sum(d_gate, shared);
  if (threadIdx.x == 0) {
    args.dz[blockIdx.x] = gate * (1.0f - gate) * d_gate;
  }
}

template <class T>
void launch_gated(const GatedArgs<T>& o, unsigned rows, cudaStream_t stream) {
  const unsigned threads = threads_of_row<T>(o.width);
  if (has_vectors<T>(o.width, {o.a, o.x, o.y})) {
    gated_kernel<true><<<rows, threads, 0, stream>>>(o);
  } else {
    gated_kernel<false><<<rows, threads, 0, stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <class T>
void launch_gated_backward(const GatedArgs<T>& o, unsigned rows, cudaStream_t stream) {
  const unsigned threads = threads_of_row<T>(o.width);
  if (has_vectors<T>(o.width, {o.x, o.dy, o.dx})) {
    gated_backward_kernel<true><<<rows, threads, 0, stream>>>(o);
  } else {
    gated_backward_kernel<false><<<rows, threads, 0, stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

CudaKernel make_cuda_add_gated(const OpSpec& spec, CudaContext& /*context*/) {
  const unsigned rows = grid_of(spec.operands[0].shape[0]);
  const int64_t width = spec.operands[0].shape[1];
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      launch_gated<T>({.a = args.data<const T>(0),
                       .x = args.data<const T>(1),
                       .z = args.data<const float>(2),
                       .y = args.data<T>(3),
                       .width = width},
                      rows, args.stream);
    }};
  });
}

CudaKernel make_cuda_add_gated_backward(const OpSpec& spec, CudaContext& /*context*/) {
  const unsigned rows = grid_of(spec.operands[0].shape[0]);
  const int64_t width = spec.operands[0].shape[1];
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      launch_gated_backward<T>({.x = args.data<const T>(0),
                                .z = args.data<const float>(1),
                                .dy = args.data<const T>(2),
                                .dx = args.data<T>(3),
                                .dz = args.data<float>(4),
                                .width = width},
                               rows, args.stream);
    }};
  });
}

}  // namespace braid
