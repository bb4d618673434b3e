// drop_rows: one block for each expert. It adds up what the experts before it keep and drop, finds
// the least weight that its expert keeps (a radix select: the byte of the weight's key from the
// highest to the lowest, each by a histogram of the rows that agree in the bytes before), and
// places its rows in their order. All sums are of integers, and a row's place follows from its
// weight and its place before alone, so any order of execution gives the same result.
#include "ops/drop_rows.h"

#include <cstdint>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"
#include "ops/expert_exchange.h"

namespace braid {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kBins = 256;

struct DropArgs {
  const float* weights = nullptr;    // [T K]
  const int32_t* pair_of = nullptr;  // [T K]
  const int32_t* offsets = nullptr;  // [E+1]
  int32_t* kept_row_of = nullptr;    // [T K]
  int32_t* kept_pair_of = nullptr;   // [T K]
  int32_t* kept_offsets = nullptr;   // [E+1]
  int64_t* tally = nullptr;          // [RoomTally::kSize], if rows are counted
  int32_t capacity = 1;
  int num_experts = 0;
  bool by_position = false;
};

/// A larger key is a larger weight. NaN has the largest; zeros are equal.
__device__ uint32_t key_of(float weight) {
  if (isnan(weight)) {
    return 0xffffffffu;
  }
  const uint32_t bits = weight == 0.0f ? 0u : __float_as_uint(weight);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// `shared` may be in use before, and may be used again behind it.
__device__ int32_t sum_of_block(int32_t value, int32_t* shared) {
  __syncthreads();
  const int32_t sum = block_sum(value, shared);
  __syncthreads();
  return sum;
}

/// How many threads of the block have the flag: those before this one, and all.
struct Ranked {
  int32_t before = 0;
  int32_t all = 0;
};

__device__ Ranked rank_in_block(bool flag, int32_t* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const unsigned of_warp = __ballot_sync(0xffffffffu, flag);
  __syncthreads();
  if (lane == 0) {
    shared[warp] = __popc(of_warp);
  }
  __syncthreads();
  Ranked ranked{.before = __popc(of_warp & ((1u << lane) - 1u))};
  for (int i = 0; i < kWarps; ++i) {
    ranked.before += i < warp ? shared[i] : 0;
    ranked.all += shared[i];
  }
  return ranked;
}

/// Where an expert's rows are, before and after.
struct Place {
  int32_t begin = 0;
  int32_t count = 0;
  int32_t kept = 0;      // the first row that it keeps
  int32_t dropped = 0;   // the first row that it drops
  int32_t all_kept = 0;  // by all experts
  int32_t most = 0;      // rows of an expert, of this thread's
};

__device__ Place place_of(const DropArgs& args, int expert, int32_t* shared) {
  int32_t kept = 0;
  int32_t rows = 0;
  int32_t all_kept = 0;
  Place place;
  for (int e = static_cast<int>(threadIdx.x); e < args.num_experts; e += kThreads) {
    const int32_t count = args.offsets[e + 1] - args.offsets[e];
    const int32_t keeps = min(count, args.capacity);
    kept += e < expert ? keeps : 0;
    rows += e < expert ? count : 0;
    all_kept += keeps;
    place.most = max(place.most, count);
  }
  place.begin = args.offsets[expert];
  place.count = args.offsets[expert + 1] - place.begin;
  place.kept = sum_of_block(kept, shared);
  place.all_kept = sum_of_block(all_kept, shared);
  place.dropped = place.all_kept + sum_of_block(rows, shared) - place.kept;
  return place;
}

/// Keys above `key` are kept, and so many of the first equal ones.
struct Threshold {
  uint32_t key = 0;
  int32_t equal = 0;
};

/// The bin in which the row of that rank is, counted from the highest bin; `rank` becomes that in
/// the bin. By one thread.
__device__ int bin_of_rank(const int32_t* bins, int32_t& rank) {
  int bin = kBins - 1;
  while (bin > 0 && bins[bin] < rank) {
    rank -= bins[bin];
    --bin;
  }
  return bin;
}

__device__ Threshold find_threshold(const DropArgs& args, const Place& place, int32_t* bins) {
  __shared__ Threshold found;
  if (threadIdx.x == 0) {
    found = {.key = 0, .equal = args.capacity};
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) {
      bins[i] = 0;
    }
    __syncthreads();
    const uint32_t above = shift == 24 ? 0u : found.key >> (shift + 8);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < place.count; i += kThreads) {
      const uint32_t key = key_of(args.weights[args.pair_of[place.begin + i]]);
      if (shift == 24 || key >> (shift + 8) == above) {
        atomicAdd(&bins[key >> shift & 0xffu], 1);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      found.key |= static_cast<uint32_t>(bin_of_rank(bins, found.equal)) << shift;
    }
    __syncthreads();
  }
  return found;
}

__device__ void set_row(const DropArgs& args, int32_t pair, int32_t row) {
  args.kept_row_of[pair] = row;
  args.kept_pair_of[row] = pair;
}

/// The expert keeps its first rows.
__device__ void place_first(const DropArgs& args, const Place& place) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < place.count; i += kThreads) {
    const int32_t row = i < args.capacity ? place.kept + i : place.dropped + i - args.capacity;
    set_row(args, args.pair_of[place.begin + i], row);
  }
}

/// The expert keeps its heaviest rows.
__device__ void place_heaviest(const DropArgs& args, Place place, const Threshold& threshold,
                               int32_t* shared) {
  int32_t equal = 0;
  for (int32_t first = 0; first < place.count; first += kThreads) {
    const int32_t i = first + static_cast<int32_t>(threadIdx.x);
    const bool is_row = i < place.count;
    const int32_t pair = is_row ? args.pair_of[place.begin + i] : 0;
    const uint32_t key = is_row ? key_of(args.weights[pair]) : 0;
    const Ranked same = rank_in_block(is_row && key == threshold.key, shared);
    const bool is_kept =
        is_row &&
        (key > threshold.key || (key == threshold.key && equal + same.before < threshold.equal));
    const Ranked kept = rank_in_block(is_kept, shared);
    if (is_row) {
      const int32_t others = static_cast<int32_t>(threadIdx.x) - kept.before;
      set_row(args, pair, is_kept ? place.kept + kept.before : place.dropped + others);
    }
    equal += same.all;
    place.kept += kept.all;
    place.dropped += min(kThreads, place.count - first) - kept.all;
  }
}

/// By one block.
__device__ void add_to_tally(const DropArgs& args, const Place& place) {
  __shared__ int32_t most;
  if (threadIdx.x == 0) {
    most = 0;
  }
  __syncthreads();
  atomicMax(&most, place.most);
  __syncthreads();
  if (threadIdx.x == 0) {
    const int32_t num_rows = args.offsets[args.num_experts];
    int64_t* const tally = args.tally;
    tally[RoomTally::kRows] += num_rows;
    tally[RoomTally::kDropped] += num_rows - place.all_kept;
    tally[RoomTally::kMost] = max(tally[RoomTally::kMost], int64_t{most});
    tally[RoomTally::kRoom] = args.capacity;
    tally[RoomTally::kEqual] = max(1, num_rows / args.num_experts);
  }
}

__global__ void __launch_bounds__(kThreads) drop_kernel(DropArgs args) {
  __shared__ int32_t bins[kBins];
  __shared__ int32_t shared[kWarpSize];
  const int expert = static_cast<int>(blockIdx.x);
  const Place place = place_of(args, expert, shared);
  if (args.by_position || place.count <= args.capacity) {
    place_first(args, place);
  } else {
    place_heaviest(args, place, find_threshold(args, place, bins), shared);
  }
  if (threadIdx.x == 0) {
    args.kept_offsets[expert + 1] = place.kept + min(place.count, args.capacity);
  }
  if (expert == 0) {
    if (threadIdx.x == 0) {
      args.kept_offsets[0] = 0;
    }
    if (args.tally != nullptr) {
      add_to_tally(args, place);
    }
  }
}

}  // namespace

CudaKernel make_cuda_drop_rows(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<DropRowsAttributes>(spec);
  check(spec.operands[0].dtype == DType::kF32, "drop_rows of {} weights, but a GPU has f32",
        dtype_name(spec.operands[0].dtype));
  const int64_t num_experts = spec.operands[3].shape[0] - 1;
  return {.launch = [=](const CudaKernelArgs& args) {
    drop_kernel<<<grid_of(num_experts), kThreads, 0, args.stream>>>(
        {.weights = args.data<const float>(0),
         .pair_of = args.data<const int32_t>(2),
         .offsets = args.data<const int32_t>(3),
         .kept_row_of = args.data<int32_t>(4),
         .kept_pair_of = args.data<int32_t>(5),
         .kept_offsets = args.data<int32_t>(6),
         .tally = attributes.watch.watch ? args.data<int64_t>(7) : nullptr,
         .capacity = static_cast<int32_t>(attributes.capacity),
         .num_experts = static_cast<int>(num_experts),
         .by_position = attributes.by_position});
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace braid
