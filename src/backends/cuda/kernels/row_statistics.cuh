#pragma once

#include <cmath>
#include <cstdint>

#include "backends/cuda/kernels/ptx.cuh"
#include "ops/cross_entropy.h"

/// What blocks or ranks know of a row of logits whose columns they share.
namespace braid {

inline constexpr float kLog2E = 1.4426950408889634f;
/// log(sum(exp(x))) = max + log(sum); for no elements, max is -infinity and sum 0.
struct RunningSum {
  float max = -INFINITY;
  float sum = 0;
};

/// The reference that is subtracted from a term: 0 if all values so far are -infinity.
__device__ inline float reference_of(float max) {
  return max == -INFINITY ? 0.0f : max;
}

__device__ inline float exp_of(float x) {
  return ptx::exp2_approx(x * kLog2E);
}

__device__ inline RunningSum merge(const RunningSum& a, const RunningSum& b) {
  RunningSum both;
  both.max = fmaxf(a.max, b.max);
  const float reference = reference_of(both.max);
  both.sum = a.sum * exp_of(a.max - reference) + b.sum * exp_of(b.max - reference);
  return both;
}

struct MergedRow {
  float lse = 0;
  double of_label = 0;  ///< the label's logit
};

/// Merges statistics f32 [ranks*rows,3] in rank order, so that every rank gets the same bits.
__device__ inline MergedRow merge_row(const float* all, int64_t rows, int64_t ranks, int64_t row) {
  RunningSum running;
  MergedRow merged;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* const stats = all + (rank * rows + row) * kCrossEntropyStats;
    running = merge(running, {stats[0], stats[1]});
    merged.of_label += static_cast<double>(stats[2]);
  }
  merged.lse = running.max + logf(running.sum);
  return merged;
}

}  // namespace braid
