#pragma once

// Sums over a warp and a block in an order that depends only on the number of threads. Every thread
// gets the same bits.
namespace braid {

inline constexpr int kWarpSize = 32;

template <class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int lane_mask = kWarpSize / 2; lane_mask > 0; lane_mask /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, lane_mask);
  }
  return value;
}

/// Sum over all threads of a one-dimensional block of whole warps. `shared` has 32 elements, which
/// must not be used for anything else until a later barrier.
template <class T>
__device__ T block_sum(T value, T* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  value = warp_sum(value);
  if (num_warps == 1) {
    return value;
  }
  if (lane == 0) {
    shared[threadIdx.x / kWarpSize] = value;
  }
  __syncthreads();
  return warp_sum(lane < num_warps ? shared[lane] : T(0));
}

}  // namespace braid
