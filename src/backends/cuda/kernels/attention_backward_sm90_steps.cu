// Both kernels read and write everything once: their minimum time is bytes over the memory
// bandwidth. A block has 64 rows of one head, like a warpgroup of the kernel between them.
#include "backends/cuda/kernels/attention_backward_sm90_steps.h"

#include <bit>
#include <cmath>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"

namespace braid {
namespace {

constexpr int kSlabRows = 64;
constexpr int kWarpgroup = 128;
constexpr int kPrepareThreads = 256;
constexpr float kLog2E = 1.4426950408889634f;

/// Adjacent threads along a row of a head: a power of two, whose last ones may have nothing.
template <int kHeadSize>
inline constexpr int kLanesOfRow = static_cast<int>(std::bit_ceil(unsigned{kHeadSize /
                                                                           kVectorElems<Bf16>}));

/// The rows of a block; `row` is the first.
struct Slab {
  int64_t batch;
  int64_t head;
  int64_t row;
};

__device__ Slab slab_of(int64_t block, int64_t slabs_per_head, int64_t heads) {
  const int64_t batch_head = block / slabs_per_head;
  return {batch_head / heads, batch_head % heads, block % slabs_per_head * kSlabRows};
}

template <int kHeadSize>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare(AttentionPrepareArgs args, int64_t heads, int64_t sequence, int64_t query_rows,
            int query_tile) {
  constexpr int kElems = kVectorElems<Bf16>;
  constexpr int kLanes = kLanesOfRow<kHeadSize>;
  constexpr int kRowsAtOnce = kPrepareThreads / kLanes;
  const Slab slab = slab_of(blockIdx.x, query_rows / kSlabRows, heads);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kLanes;
  const int64_t head_rows = (slab.batch * heads + slab.head) * query_rows;
#pragma unroll
  for (int i = 0; i < kSlabRows / kRowsAtOnce; ++i) {
    const int64_t row = slab.row + i * kRowsAtOnce + thread / kLanes;
    float sum = 0;
    if (row < sequence && lane < kHeadSize / kElems) {
      const int64_t at =
          ((slab.batch * sequence + row) * heads + slab.head) * kHeadSize + lane * kElems;
      const auto out = load_vector<kElems, true>(args.out + at, kElems);
      const auto d_out = load_vector<kElems, true>(args.d_out + at, kElems);
#pragma unroll
      for (int e = 0; e < kElems; ++e) {
        sum += widen(out.elems[e]) * widen(d_out.elems[e]);
      }
    }
#pragma unroll
    for (int lane_mask = kLanes / 2; lane_mask > 0; lane_mask /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, lane_mask);
    }
    if (lane == 0) {
      const int64_t lse_at = (slab.batch * heads + slab.head) * sequence + row;
      args.d_out_out[head_rows + row] = sum;
      args.lse_log2[head_rows + row] = row < sequence ? args.lse[lse_at] * kLog2E : INFINITY;
    }
  }
  auto* const d_query =
      reinterpret_cast<float4*>(args.d_query + (head_rows + slab.row) * kHeadSize);
#pragma unroll
  for (int i = thread; i < kSlabRows * kHeadSize / 4; i += kPrepareThreads) {
    d_query[i] = float4{0, 0, 0, 0};
  }
  if (thread == 0 && slab.row % query_tile == 0) {
    args.semaphores[(head_rows + slab.row) / query_tile] = 0;
  }
}

/// One of the three parts of d_qkv.
struct Part {
  const float* sums;     // [B, source heads, rows * D]
  int64_t rows;          // of a head, padded to whole tiles
  int64_t heads;         // of the part
  int64_t source_heads;  // of `sums`: a multiple of `heads`; consecutive ones belong to one head of
                         // the part
  int64_t first_slot;    // the part's first head in a row of d_qkv
  float scale;
};

/// Writes the part's slab of d_qkv; shared memory converts the accumulators' order.
template <int kHeadSize>
__device__ void finish_slab(const Part& part, const Slab& slab, Bf16* d_qkv, int64_t sequence,
                            int64_t row_heads) {
  constexpr int kColumnGroups = kHeadSize / 8;
  constexpr int kElems = kVectorElems<Bf16>;
  constexpr int kPitch = kHeadSize + kElems;  // rows begin in different banks
  __shared__ alignas(16) Bf16 rows[kSlabRows * kPitch];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t group = part.source_heads / part.heads;
  const int64_t source_head = slab.batch * part.source_heads + slab.head * group;
  const float4* from =
      reinterpret_cast<const float4*>(part.sums + (source_head * part.rows + slab.row) * kHeadSize);
  float4 sums[kColumnGroups];
#pragma unroll
  for (int c = 0; c < kColumnGroups; ++c) {
    sums[c] = from[c * kWarpgroup + thread];
  }
  for (int64_t head = 1; head < group; ++head) {
    from += part.rows * kHeadSize / 4;
#pragma unroll
    for (int c = 0; c < kColumnGroups; ++c) {
      const float4 more = from[c * kWarpgroup + thread];
      sums[c] = {sums[c].x + more.x, sums[c].y + more.y, sums[c].z + more.z, sums[c].w + more.w};
    }
  }
  Bf16* const to = rows + (thread / 32 * 16 + thread % 32 / 4) * kPitch + thread % 4 * 2;
#pragma unroll
  for (int c = 0; c < kColumnGroups; ++c) {
    *reinterpret_cast<__nv_bfloat162*>(to + c * 8) =
        __floats2bfloat162_rn(sums[c].x * part.scale, sums[c].y * part.scale);
    *reinterpret_cast<__nv_bfloat162*>(to + 8 * kPitch + c * 8) =
        __floats2bfloat162_rn(sums[c].z * part.scale, sums[c].w * part.scale);
  }
  __syncthreads();
  for (int i = thread; i < kSlabRows * kColumnGroups; i += kWarpgroup) {
    const int row = i / kColumnGroups;
    const int column = i % kColumnGroups * kElems;
    if (slab.row + row < sequence) {
      const int64_t token = slab.batch * sequence + slab.row + row;
      const int64_t slot = token * row_heads + part.first_slot + slab.head;
      *reinterpret_cast<uint4*>(d_qkv + slot * kHeadSize + column) =
          *reinterpret_cast<const uint4*>(rows + row * kPitch + column);
    }
  }
}

/// Zeros behind the first `value_size` elements of the slab's value head.
template <int kHeadSize>
__device__ void zero_value_padding(const Slab& slab, Bf16* d_qkv, int64_t sequence, int64_t heads,
                                   int value_size) {
  const int width = kHeadSize - value_size;
  for (int i = static_cast<int>(threadIdx.x); i < kSlabRows * width; i += kWarpgroup) {
    const int64_t row = slab.row + i / width;
    if (row < sequence) {
      const int64_t token = slab.batch * sequence + row;
      const int64_t head = token * 3 * heads + 2 * heads + slab.head;
      d_qkv[head * kHeadSize + value_size + i % width] = narrow<Bf16>(0.0f);
    }
  }
}

template <int kHeadSize>
__global__ void __launch_bounds__(kWarpgroup)
    finish(AttentionFinishArgs args, int64_t batches, int64_t heads, int64_t kv_heads,
           int64_t sequence, int64_t query_rows, int64_t key_rows, int value_size) {
  const int64_t query_blocks = batches * heads * (query_rows / kSlabRows);
  const int64_t key_blocks = batches * kv_heads * (key_rows / kSlabRows);
  Part part{args.d_query, query_rows, heads, heads, 0, args.scale};
  int64_t block = blockIdx.x;
  if (block >= query_blocks) {
    block -= query_blocks;
    const bool is_value = block >= key_blocks;
    block -= is_value ? key_blocks : 0;
    part = {is_value ? args.d_value : args.d_key,
            key_rows,
            kv_heads,
            heads,
            heads + (is_value ? kv_heads : 0),
            is_value ? 1.0f : args.scale};
  }
  const Slab slab = slab_of(block, part.rows / kSlabRows, part.heads);
  finish_slab<kHeadSize>(part, slab, args.d_qkv, sequence, heads + 2 * kv_heads);
  if (value_size < kHeadSize && heads == kv_heads) {
    zero_value_padding<kHeadSize>(slab, args.d_qkv, sequence, heads, value_size);
  }
}

/// Calls launch.template operator()<head size>().
template <class Launch>
void dispatch_head_size(int64_t head_size, const Launch& launch) {
  if (head_size == 64) {
    launch.template operator()<64>();
  } else if (head_size == 128) {
    launch.template operator()<128>();
  } else {
    check(head_size == 192, "attention: head size {}", head_size);
    launch.template operator()<192>();
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void attention_prepare(const AttentionSizes& sizes, const AttentionPrepareArgs& args,
                       cudaStream_t stream) {
  const Sm90Scratch scratch(sizes);
  const unsigned grid = grid_of(sizes.batches * sizes.heads * (scratch.query_rows / kSlabRows));
  dispatch_head_size(sizes.head_size, [&]<int kHeadSize>() {
    prepare<kHeadSize><<<grid, kPrepareThreads, 0, stream>>>(
        args, sizes.heads, sizes.queries, scratch.query_rows, static_cast<int>(scratch.query_tile));
  });
}

void attention_finish(const AttentionSizes& sizes, const AttentionFinishArgs& args,
                      cudaStream_t stream) {
  const Sm90Scratch scratch(sizes);
  const int64_t query_slabs = sizes.heads * (scratch.query_rows / kSlabRows);
  const int64_t key_slabs =
      sizes.group() > 1 ? 2 * sizes.kv_heads * (scratch.key_rows / kSlabRows) : 0;
  const unsigned grid = grid_of(sizes.batches * (query_slabs + key_slabs));
  dispatch_head_size(sizes.head_size, [&]<int kHeadSize>() {
    finish<kHeadSize><<<grid, kWarpgroup, 0, stream>>>(
        args, sizes.batches, sizes.heads, sizes.kv_heads, sizes.queries, scratch.query_rows,
        scratch.key_rows, static_cast<int>(sizes.value_size));
  });
}

}  // namespace braid
