#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "backends/cuda/kernels/mamba2_scratch.h"
#include "backends/cuda/kernels/ptx.cuh"

// The kernels of mamba2 and mamba2_backward (ops/mamba2.h). The state space is computed in chunks
// of kSsdChunk rows whatever the op's `chunk` says, which changes rounding only:
//   steps    dt, and decays within a chunk
//   conv     x, B and C of all rows, rounded to bf16
//   states   walks through the chunks of a head: the state before each
//   chunks   all chunks at once: what a chunk's rows and the state before it give
//   norm     the gated norm
// The backward repeats the first three, walks back through the chunks for the gradients of states,
// then computes all chunks at once. A block of `chunks` has all heads of a group, or kSsdHeads of
// them, so that it adds their gradients of B and C in registers, in the order of heads.
//
// States and chunks have two families of kernels (Mamba2Family): those for Hopper, `_sm90`, whose
// forward computes states and chunks in one walk (`scan`), and those for the other GPUs.
namespace braid {

/// Sizes as in ops/mamba2.h, and those of the division into chunks, which end with a sequence.
struct Mamba2Sizes {
  int64_t tokens = 0;
  int sequence = 0;
  int heads = 0;
  int head_size = 0;
  int groups = 0;
  int state = 0;
  int taps = 0;
  int norm_groups = 0;
  int weight_parts = 1;  ///< Mamba2WeightPart
  int weight_part = 0;

  __host__ __device__ int inner() const { return heads * head_size; }
  /// Elements of B, and of C, in a row.
  __host__ __device__ int factor() const { return groups * state; }
  __host__ __device__ int convolved() const { return inner() + 2 * factor(); }
  __host__ __device__ int dt_begin() const { return inner() + convolved(); }
  __host__ __device__ int row_elems() const { return dt_begin() + heads; }
  /// A run of channels of the convolution that begins in a row with `begin`: x, B or C; all of them
  /// if weights have one part.
  struct ConvRun {
    int begin = 0;
    int size = 0;
  };
  __host__ __device__ ConvRun conv_run(int channel) const {
    if (weight_parts == 1) {
      return {0, convolved()};
    }
    if (channel < inner()) {
      return {0, inner()};
    }
    const int second = inner() + factor();
    return {channel < second ? inner() : second, factor()};
  }
  /// The first row of conv_weight of a run's part.
  __host__ __device__ int64_t weight_begin(const ConvRun& run) const {
    return int64_t{weight_parts} * run.begin + int64_t{weight_part} * run.size;
  }
  __host__ __device__ int sequences() const { return static_cast<int>(tokens / sequence); }
  __host__ __device__ int chunks_per_sequence() const {
    return (sequence + kSsdChunk - 1) / kSsdChunk;
  }
  __host__ __device__ int chunks() const { return sequences() * chunks_per_sequence(); }
  /// Rows with those that fill the last chunk of each sequence.
  __host__ __device__ int64_t padded_rows() const { return int64_t{chunks()} * kSsdChunk; }
  __host__ __device__ int64_t state_elems() const { return int64_t{head_size} * state; }
  __host__ __device__ int heads_per_group() const { return heads / groups; }
  /// Blocks that share the heads of a group.
  __host__ __device__ int parts() const { return (heads_per_group() + kSsdHeads - 1) / kSsdHeads; }
  __host__ __device__ int heads_per_part() const {
    return (heads_per_group() + parts() - 1) / parts();
  }
};

/// A chunk: its rows, and which of them exist.
struct ChunkRows {
  int64_t begin = 0;   ///< of all rows
  int64_t padded = 0;  ///< of those with the rows that fill chunks
  int count = 0;

  __device__ ChunkRows(const Mamba2Sizes& sizes, int chunk) {
    const int in_sequence = chunk % sizes.chunks_per_sequence() * kSsdChunk;
    begin = int64_t{chunk / sizes.chunks_per_sequence()} * sizes.sequence + in_sequence;
    padded = int64_t{chunk} * kSsdChunk;
    count = min(kSsdChunk, sizes.sequence - in_sequence);
  }
};

using Mamba2Data = __nv_bfloat16;

/// What several kernels read, and the scratch between them; null where a kernel lacks it.
struct Mamba2Args {
  Mamba2Sizes sizes;
  float dt_min = 0;
  float dt_max = 0;
  float epsilon = 0;
  const Mamba2Data* zxbcdt = nullptr;       // [T, row_elems]
  const Mamba2Data* conv_weight = nullptr;  // of all parts; those of heads begin with this part
  const Mamba2Data* conv_bias = nullptr;
  const Mamba2Data* dt_bias = nullptr;
  const Mamba2Data* a_log = nullptr;
  const Mamba2Data* skip = nullptr;
  const Mamba2Data* norm_weight = nullptr;
  Mamba2Data* y = nullptr;  // [T, inner]; the backward reads it
  float* rstd = nullptr;    // [T, norm_groups]; the same

  float* dt = nullptr;      // [heads, padded_rows]; 0 where there is no row
  float* decay = nullptr;   // the same: log2 of the state's decay since the chunk began
  float* to_end = nullptr;  // the same: dt times the decay from after the row to the chunk's end
  float* from_begin = nullptr;   // the same: the decay from the chunk's begin to the row
  Mamba2Data* xbc = nullptr;     // [T, convolved]
  float* products = nullptr;     // C B^T of all chunks and groups: of scan_sm90
  Mamba2Data* states = nullptr;  // [chunks, heads, head_size, state], before each chunk

  // Of sections (ops/mamba2_section.h); null: sequences begin and end with 0.
  const Mamba2Data* before = nullptr;  // [sequences, taps - 1, convolved], rows in front of each
  const float* initial = nullptr;      // [sequences, heads, head_size, state]
  const float* d_final = nullptr;      // the same
  Mamba2Data* d_before = nullptr;
  /// [sequences, heads * (head_size * state + 1)]: the states behind each sequence, or the
  /// gradients of those in front of it, then the products of decays. Null: not computed.
  float* summaries = nullptr;

  // Of the backward.
  const Mamba2Data* dv = nullptr;  // [T, inner]
  Mamba2Data* d_zxbcdt = nullptr;
  Mamba2Data* dy = nullptr;        // [T, inner]
  Mamba2Data* dx = nullptr;        // [T, inner]
  Mamba2Data* d_states = nullptr;  // as `states`: of the state after each chunk
  float* d_factors = nullptr;      // [parts, T, 2 factor]: of B and C
  float* d_decay = nullptr;        // [heads, padded_rows]: of dt A
  float* d_dt = nullptr;           // the same: of dt, but for dt A
  float* dy_x = nullptr;           // the same: dy x
  float* partials = nullptr;       // sums over some rows, of one kernel after the other
};

/// Sums over rows in two passes, for gradients of weights: added to, or overwritten. Those of heads
/// and channels begin with the op's part; those of the convolution are of all parts.
struct Mamba2WeightGrads {
  float* conv_weight = nullptr;
  float* conv_bias = nullptr;
  float* dt_bias = nullptr;
  float* a_log = nullptr;
  float* skip = nullptr;
  float* norm_weight = nullptr;
  bool accumulate = false;
};

void launch_mamba2_steps(const Mamba2Args& args, cudaStream_t stream);
void launch_mamba2_conv(const Mamba2Args& args, cudaStream_t stream);
/// `states`; or `d_states`, from the last chunk of a sequence to its first. Where these are null,
/// only `summaries`.
void launch_mamba2_states(const Mamba2Args& args, cudaStream_t stream);
void launch_mamba2_states_sm90(const Mamba2Args& args, cudaStream_t stream);
void launch_mamba2_d_states(const Mamba2Args& args, cudaStream_t stream);
void launch_mamba2_d_states_sm90(const Mamba2Args& args, cudaStream_t stream);
/// `y`, from `states`.
void launch_mamba2_chunks(const Mamba2Args& args, cudaStream_t stream);
/// `y`, by way of `products`, without `states`.
void launch_mamba2_scan_sm90(const Mamba2Args& args, cudaStream_t stream);
/// `dx`, `d_factors`, `d_decay`, `d_dt`, `dy_x`, from `states` and `d_states`.
void launch_mamba2_chunks_backward(const Mamba2Args& args, cudaStream_t stream);
void launch_mamba2_chunks_backward_sm90(const Mamba2Args& args, cudaStream_t stream);
/// v [T, inner] and `rstd`.
void launch_mamba2_norm(const Mamba2Args& args, Mamba2Data* v, cudaStream_t stream);
/// `dy`, and z's part of d_zxbcdt.
void launch_mamba2_norm_backward(const Mamba2Args& args, const Mamba2WeightGrads& grads,
                                 cudaStream_t stream);
/// `dy` alone.
void launch_mamba2_dy(const Mamba2Args& args, cudaStream_t stream);
/// The products of decays in `summaries`.
void launch_mamba2_decays(const Mamba2Args& args, cudaStream_t stream);
/// dt's part of d_zxbcdt.
void launch_mamba2_steps_backward(const Mamba2Args& args, const Mamba2WeightGrads& grads,
                                  cudaStream_t stream);
/// The part of x, B and C.
void launch_mamba2_conv_backward(const Mamba2Args& args, const Mamba2WeightGrads& grads,
                                 cudaStream_t stream);

inline constexpr float kLog2E = 1.4426950408889634f;

__device__ inline float sigmoid(float x) {
  return ptx::reciprocal_approx(1.0f + ptx::exp2_approx(-x * kLog2E));
}

/// softplus(u), as ops/mamba2.h has it.
__device__ inline float softplus(float u) {
  return u > 20.0f ? u : log1pf(expf(u));
}

}  // namespace braid
