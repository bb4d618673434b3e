#pragma once

#include <cmath>

#include "backends/cuda/kernels/block_sum.cuh"

// Shared parts of the kernels of routers (ops/router.h). A warp has the logits of one token: lane l
// has those of experts l, l + 32, ...
namespace braid {

/// Added to a sum of sigmoids, as in DeepSeek-V3.
inline constexpr float kTinySum = 1e-20f;
inline constexpr int kMaxRouterExperts = 512;
inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int lane_mask = kWarpSize / 2; lane_mask > 0; lane_mask /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, lane_mask));
  }
  return value;
}

/// At most 1 / (1 + 0): neither branch overflows or cancels.
__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/// exp(logit - largest) of the logits of a warp adds up to `total`: NaN if one is NaN or +infinity,
/// or all are -infinity.
struct RowExp {
  float largest;
  float total;

  __device__ float softmax(float logit) const { return expf(logit - largest) / total; }
  __device__ float log_sum() const { return largest + logf(total); }
};

/// The logits of one token; those beyond the last expert are not used.
template <int kPerLane>
struct TokenLogits {
  float logits[kPerLane];
  int experts;

  __device__ TokenLogits(const float* row, int num_experts) : experts(num_experts) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      logits[i] = has(i) ? row[expert(i)] : 0.0f;
    }
  }
  __device__ static int expert(int i) {
    return i * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize;
  }
  __device__ bool has(int i) const {
    return expert(i) < experts;
  }

  __device__ RowExp row_exp() const {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      largest = has(i) ? fmaxf(largest, logits[i]) : largest;
    }
    largest = warp_max(largest);
    float total = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      total += has(i) ? expf(logits[i] - largest) : 0.0f;
    }
    return {largest, warp_sum(total)};
  }
};

/// Calls launch.template operator()<logits per lane>() for a number of experts.
template <class Launch>
void dispatch_experts(int64_t experts, const Launch& launch) {
  if (experts <= 32) {
    launch.template operator()<1>();
  } else if (experts <= 64) {
    launch.template operator()<2>();
  } else if (experts <= 128) {
    launch.template operator()<4>();
  } else if (experts <= 256) {
    launch.template operator()<8>();
  } else {
    launch.template operator()<kMaxRouterExperts / kWarpSize>();
  }
}

}  // namespace braid
