#include "backends/cuda/kernels/attention_merge.h"

#include <cmath>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"

// Memory-bound: a block per piece of a row, 16 bytes of the part and 32 of the sum per thread and
// load. The merge of a sum needs the old log-sum-exp, which a second kernel then updates: heads do
// not end at warp boundaries, so the first kernel cannot tell when all threads have read it.
namespace braid {
namespace {

constexpr int kVector = kVectorElems<Bf16>;
constexpr int kUnroll = 2;
constexpr int kThreads = 256;

enum class Combine {
  kStore,  // every row of the sequences
  kAdd,    // rows of the range, like kMerge
  kMerge,
};

/// RowRange in 32 bits, for faster division.
struct Range {
  unsigned rows = 0;
  unsigned begin = 0;
  unsigned count = 0;
};

struct CombineArgs {
  const Bf16* part = nullptr;
  float* sum = nullptr;
  Range range;
  int64_t width = 0;
  unsigned chunks = 1;              // of a row
  const float* part_lse = nullptr;  // kMerge only, like all that follow
  const float* lse = nullptr;
  unsigned heads = 1;
  unsigned head_size = 1;
};

/// A row of the sum, and the corresponding row of the part.
struct PlacedRow {
  unsigned sequence = 0;
  unsigned row = 0;   // of the sequence
  unsigned part = 0;  // of the range
  bool is_inside = true;
};

template <bool kOfRange>
__device__ PlacedRow place_of(const Range& range, unsigned number) {
  PlacedRow place;
  if constexpr (kOfRange) {
    place.sequence = number / range.count;
    place.part = number % range.count;
    place.row = range.begin + place.part;
  } else {
    place.sequence = number / range.rows;
    place.row = number % range.rows;
    place.part = place.row - range.begin;
    place.is_inside = place.row >= range.begin && place.part < range.count;
  }
  return place;
}

/// The weights of two parts of a row's keys in the mean of all keys, and the combined lse.
struct Merged {
  float before_weight;
  float found_weight;
  float lse;
};

/// `found` is finite; `before` is -infinity if there are no earlier keys.
__device__ Merged merge(float before, float found) {
  const float larger = fmaxf(before, found);
  const float before_weight = expf(before - larger);
  const float found_weight = expf(found - larger);
  const float total = before_weight + found_weight;
  return {before_weight / total, found_weight / total, larger + logf(total)};
}

__device__ Merged weights_of(const CombineArgs& args, const PlacedRow& place, int64_t column) {
  const int64_t head =
      int64_t{place.sequence} * args.heads + static_cast<unsigned>(column) / args.head_size;
  return merge(args.lse[head * args.range.rows + place.row],
               args.part_lse[head * args.range.count + place.part]);
}

template <Combine kHow>
__global__ void __launch_bounds__(kThreads) combine_kernel(CombineArgs args) {
  const PlacedRow place = place_of<kHow != Combine::kStore>(args.range, blockIdx.x / args.chunks);
  const int64_t chunk = blockIdx.x % args.chunks;
  const int64_t first = (chunk * kUnroll * blockDim.x + threadIdx.x) * kVector;
  const Bf16* const part =
      args.part + (int64_t{place.sequence} * args.range.count + place.part) * args.width;
  float* const sum =
      args.sum + (int64_t{place.sequence} * args.range.rows + place.row) * args.width;
  DeviceVector<Bf16, kVector> found[kUnroll] = {};
  DeviceVector<float, kVector> total[kUnroll] = {};
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t c = first + u * static_cast<int64_t>(blockDim.x) * kVector;
    if (c < args.width && place.is_inside) {
      found[u] = load_vector<kVector, true>(part + c, kVector);
      if constexpr (kHow != Combine::kStore) {
        total[u] = load_vector<kVector, true>(sum + c, kVector);
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t c = first + u * static_cast<int64_t>(blockDim.x) * kVector;
    if (c >= args.width) {
      break;
    }
    Merged weights{1.0f, 1.0f, 0.0f};
    if constexpr (kHow == Combine::kMerge) {
      weights = weights_of(args, place, c);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float x = widen(found[u].elems[i]);
      float& y = total[u].elems[i];
      if constexpr (kHow == Combine::kStore) {
        y = place.is_inside ? x : 0.0f;
      } else if constexpr (kHow == Combine::kAdd) {
        y += x;
      } else {
        y = y * weights.before_weight + x * weights.found_weight;
      }
    }
    store_vector<true>(sum + c, total[u], kVector);
  }
}

/// One thread per written row of each head.
template <bool kAccumulate>
__global__ void __launch_bounds__(kThreads)
    merge_lse_kernel(const float* part_lse, float* lse, Range range, int64_t count) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread >= count) {
    return;
  }
  // The heads of sequences replace the sequences here.
  const PlacedRow place = place_of<kAccumulate>(range, static_cast<unsigned>(thread));
  float& to = lse[int64_t{place.sequence} * range.rows + place.row];
  const int64_t from = int64_t{place.sequence} * range.count + place.part;
  if constexpr (kAccumulate) {
    to = merge(to, part_lse[from]).lse;
  } else {
    to = place.is_inside ? part_lse[from] : -INFINITY;
  }
}

__global__ void __launch_bounds__(kThreads)
    take_lse_kernel(const float* lse, float* part_lse, Range range, int64_t count) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread < count) {
    const PlacedRow place = place_of<true>(range, static_cast<unsigned>(thread));
    part_lse[thread] = lse[int64_t{place.sequence} * range.rows + place.row];
  }
}

/// A sequence has fewer rows than a grid has blocks, which is checked.
Range narrowed(const RowRange& range) {
  return {.rows = static_cast<unsigned>(range.rows),
          .begin = static_cast<unsigned>(range.begin),
          .count = static_cast<unsigned>(range.count)};
}

template <Combine kHow>
void launch_combine(CombineArgs args, const RowRange& range, cudaStream_t stream) {
  check(args.width % kVector == 0 && all_aligned(16, {args.part, args.sum}),
        "attention: rows of {} elements cannot be merged in vectors of 16 bytes", args.width);
  const RowChunks chunks(args.width / kVector, kUnroll, kThreads);
  args.range = narrowed(range);
  args.chunks = chunks.chunks;
  const int64_t rows = range.sequences * (kHow == Combine::kStore ? range.rows : range.count);
  const unsigned grid = grid_of(rows * chunks.chunks);
  combine_kernel<kHow><<<grid, chunks.threads, 0, stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

/// Blocks of kThreads threads, with one thread per element.
unsigned grid_over(int64_t count) {
  grid_of(count);  // a thread's index fits, too
  return grid_of(ceil_div(count, kThreads));
}

}  // namespace

void add_rows(const AddRowsArgs& args, cudaStream_t stream) {
  const CombineArgs combined{.part = args.part, .sum = args.sum, .width = args.width};
  if (args.accumulate) {
    launch_combine<Combine::kAdd>(combined, args.range, stream);
  } else {
    launch_combine<Combine::kStore>(combined, args.range, stream);
  }
}

void merge_attention(const MergeAttentionArgs& args, cudaStream_t stream) {
  check(args.head_size % kVector == 0, "attention: heads of {} elements cannot be merged",
        args.head_size);
  const CombineArgs combined{.part = args.part,
                             .sum = args.sum,
                             .width = args.heads * args.head_size,
                             .part_lse = args.part_lse,
                             .lse = args.lse,
                             .heads = static_cast<unsigned>(args.heads),
                             .head_size = static_cast<unsigned>(args.head_size)};
  const Range range = narrowed(args.range);
  const int64_t heads = args.range.sequences * args.heads;
  const int64_t count = heads * (args.accumulate ? args.range.count : args.range.rows);
  const unsigned grid = grid_over(count);
  if (args.accumulate) {
    launch_combine<Combine::kMerge>(combined, args.range, stream);
    merge_lse_kernel<true><<<grid, kThreads, 0, stream>>>(args.part_lse, args.lse, range, count);
  } else {
    launch_combine<Combine::kStore>(combined, args.range, stream);
    merge_lse_kernel<false><<<grid, kThreads, 0, stream>>>(args.part_lse, args.lse, range, count);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

void take_lse(const float* lse, const RowRange& range, int64_t heads, float* part_lse,
              cudaStream_t stream) {
  const int64_t count = range.sequences * heads * range.count;
  take_lse_kernel<<<grid_over(count), kThreads, 0, stream>>>(lse, part_lse, narrowed(range), count);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace braid
