#pragma once

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"

// out[i] = op(a[i]) or op(a[i], b[i]) over dense arrays; the op computes in float (double if an
// operand is double).
namespace braid {

template <class In, class Out, class In2 = In>
struct MapArgs {
  const In* a = nullptr;   // [count]
  const In2* b = nullptr;  // [count], if the op takes two; may equal out
  Out* out = nullptr;      // [count]
  int64_t count = 0;
};

inline constexpr int kMapThreads = 256;
inline constexpr int kMapUnroll = 2;

template <bool kBinary, class Op, class In, class Out, class In2, int V>
__device__ DeviceVector<Out, V> map_vector(Op op, const DeviceVector<In, V>& a,
                                           const DeviceVector<In2, V>& b) {
  DeviceVector<Out, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if constexpr (kBinary) {
      out.elems[i] = narrow<Out>(op(widen(a.elems[i]), widen(b.elems[i])));
    } else {
      out.elems[i] = narrow<Out>(op(widen(a.elems[i])));
    }
  }
  return out;
}

/// This thread's vectors of one block. With kAligned all of them are complete.
template <bool kBinary, bool kAligned, int V, class Op, class In, class Out, class In2>
__device__ void map_block(Op op, const MapArgs<In, Out, In2>& args) {
  const int64_t first = (int64_t{blockIdx.x} * kMapUnroll * kMapThreads + threadIdx.x) * V;
  DeviceVector<In, V> a[kMapUnroll];
  DeviceVector<In2, V> b[kMapUnroll];
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    const int64_t at = first + u * kMapThreads * V;
    if (kAligned || at < args.count) {
      a[u] = load_vector<V, kAligned>(args.a + at, args.count - at);
      if constexpr (kBinary) {
        b[u] = load_vector<V, kAligned>(args.b + at, args.count - at);
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    const int64_t at = first + u * kMapThreads * V;
    if (kAligned || at < args.count) {
      store_vector<kAligned>(
          args.out + at, map_vector<kBinary, Op, In, Out, In2, V>(op, a[u], b[u]), args.count - at);
    }
  }
}

template <bool kBinary, bool kAligned, int V, class Op, class In, class Out, class In2>
__global__ void __launch_bounds__(kMapThreads) map_kernel(Op op, MapArgs<In, Out, In2> args) {
  const int64_t block_end = (int64_t{blockIdx.x} + 1) * kMapUnroll * kMapThreads * V;
  if (kAligned && block_end <= args.count) {
    map_block<kBinary, true, V>(op, args);
  } else {
    map_block<kBinary, false, V>(op, args);
  }
}

/// Vectors have 16 bytes of the narrower type, so that accesses of both types have at least 16
/// bytes.
template <bool kBinary, class Op, class In, class Out, class In2>
void launch_map(Op op, const MapArgs<In, Out, In2>& args, cudaStream_t stream) {
  constexpr int V = std::max(kVectorElems<In>, kVectorElems<Out>);
  const unsigned grid = grid_of(ceil_div(args.count, int64_t{V} * kMapUnroll * kMapThreads));
  if (grid == 0) {
    return;
  }
  if (all_aligned(16, {args.a, args.b, args.out})) {
    map_kernel<kBinary, true, V><<<grid, kMapThreads, 0, stream>>>(op, args);
  } else {
    map_kernel<kBinary, false, V><<<grid, kMapThreads, 0, stream>>>(op, args);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace braid
