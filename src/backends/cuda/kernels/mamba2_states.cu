#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2_tiles.cuh"

// A block has a head of a sequence and keeps half of its state [P, N] in registers, f32, from chunk
// to chunk: a warp 16 rows and an eighth to a quarter of the columns. Per chunk
//   forward   S <- decay S + sum_j decay from j to the end, dt_j x_j B_j^T
//   backward  G <- decay G + sum_i decay from the begin to i, dy_i C_i^T
// where the state, rounded, is written before it changes. The walk is sequential, so tiles of the
// next chunks are under way while one is added, and many warps with little work each hide the time
// from one instruction to the next.
namespace braid {
namespace {

constexpr int kRowWarps = kSsdHeadSize / 16;
constexpr int kColumnWarps = 2;
constexpr int kThreads = kRowWarps * kColumnWarps * kWarpSize;
constexpr int kBlocksPerHead = 2;
constexpr int kStages = 4;

/// What the rows of a chunk count: `to_end` or `from_begin`, and the decay over the whole chunk.
struct WeightTile {
  alignas(16) float of[kSsdChunk];
  alignas(16) float last_decays[4];

  __device__ void start_load(const float* weights, const float* from_begin) {
    constexpr int kVector = 4;
    constexpr int kVectors = kSsdChunk / kVector;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < kVectors) {
      ptx::copy_16_async(of + kVector * thread, weights + kVector * thread, true);
    } else if (thread == kVectors) {
      ptx::copy_16_async(last_decays, from_begin + kSsdChunk - kVector, true);
    }
  }
  __device__ float whole_decay() const { return last_decays[3]; }
};

/// N columns of the state, of which a warp has kColumns.
template <int N>
struct StatesShared {
  static constexpr int kColumns = N / kColumnWarps;
  HeadTile rows[kStages];
  FactorTile<N> factors[kStages];
  WeightTile weights[kStages];
  StateTile<N> state;  ///< as it is written
};

template <int N, bool kBackward>
__device__ void start_load(const Mamba2Args& args, StatesShared<N>& shared, int chunk, int stage) {
  const Mamba2Sizes& s = args.sizes;
  const ChunkRows rows(s, chunk);
  const int head = static_cast<int>(blockIdx.x);
  const int begin = static_cast<int>(blockIdx.z) * N;
  const int column =
      factor_column(s, head / s.heads_per_group()) + (kBackward ? s.factor() : 0) + begin;
  const Mamba2Data* const from =
      kBackward ? args.dy + rows.begin * s.inner() : args.xbc + rows.begin * s.convolved();
  shared.rows[stage].template start_load<kThreads>(
      from + head * s.head_size, kBackward ? s.inner() : s.convolved(), rows.count, s.head_size);
  shared.factors[stage].template start_load<kThreads>(
      args.xbc + rows.begin * s.convolved() + column, s.convolved(), rows.count, s.state - begin);
  const int64_t at = head * s.padded_rows() + rows.padded;
  shared.weights[stage].start_load((kBackward ? args.from_begin : args.to_end) + at,
                                   args.from_begin + at);
}

/// Scales the elements of a factor by the weights of 16 rows of the chunk, which are its depth.
__device__ inline void weigh(LeftTile& tile, const WeightTile& weights, int begin) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float2 weight =
        *reinterpret_cast<const float2*>(weights.of + begin + 8 * half + sum_column());
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      const float2 pair = unpack_bf16(tile[i]);
      tile[i] = pack_bf16(pair.x * weight.x, pair.y * weight.y);
    }
  }
}

/// Writes a warp's part of the state, by way of shared memory, so that rows are written in pieces
/// of 16 bytes.
template <int N>
__device__ void save_state(Mamba2Data* to, const Mamba2Sizes& s, StatesShared<N>& shared,
                           const SumTile (&state)[StatesShared<N>::kColumns / 8], int row,
                           int column) {
  constexpr int kColumns = StatesShared<N>::kColumns;
  constexpr int kVector = 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int tile = 0; tile < kColumns / 8; ++tile) {
      *reinterpret_cast<uint32_t*>(
          shared.state.at(row + sum_row(half), column + 8 * tile + sum_column())) =
          pack_bf16(state[tile][2 * half], state[tile][2 * half + 1]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = lane_index(); i < 16 * kColumns / kVector; i += kWarpSize) {
    const int p = row + i / (kColumns / kVector);
    const int n = column + i % (kColumns / kVector) * kVector;
    if (p < s.head_size && static_cast<int>(blockIdx.z) * N + n < s.state) {
      store_vector<true>(to + p * s.state + n,
                         load_vector<kVector, true>(shared.state.at(p, n), kVector), kVector);
    }
  }
  __syncwarp();
}

/// Adds a chunk to a warp's part of the state.
template <int N>
__device__ void add_chunk(SumTile (&state)[StatesShared<N>::kColumns / 8], StatesShared<N>& shared,
                          int stage, int row, int column) {
  constexpr int kColumns = StatesShared<N>::kColumns;
  const WeightTile& weights = shared.weights[stage];
  const float decay = weights.whole_decay();
#pragma unroll
  for (int tile = 0; tile < kColumns / 8; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      state[tile][i] *= decay;
    }
  }
#pragma unroll
  for (int depth = 0; depth < kSsdChunk; depth += 16) {
    LeftTile left;
    load_left_transposed(left, shared.rows[stage].at(depth, row), HeadTile::kStride);
    weigh(left, weights, depth);
#pragma unroll
    for (int n = 0; n < kColumns; n += 16) {
      add_products(state[n / 8], state[n / 8 + 1], left,
                   load_right_transposed(shared.factors[stage].at(depth, column + n),
                                         FactorTile<N>::kStride));
    }
  }
}

template <int N, bool kBackward>
__global__ void __launch_bounds__(kThreads, 2)
    states_kernel(const __grid_constant__ Mamba2Args args) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<StatesShared<N>*>(memory);
  const Mamba2Sizes& s = args.sizes;
  const int chunks = s.chunks_per_sequence();
  const int first = static_cast<int>(blockIdx.y) * chunks;
  const auto chunk_at = [&](int step) { return first + (kBackward ? chunks - 1 - step : step); };
  const auto start = [&](int step) {
    if (step < chunks) {
      start_load<N, kBackward>(args, shared, chunk_at(step), step % kStages);
    }
    ptx::end_copy_group();
  };
  Mamba2Data* const states = (kBackward ? args.d_states : args.states) + int64_t{blockIdx.z} * N;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int row = warp % kRowWarps * 16;
  const int column = warp / kRowWarps * StatesShared<N>::kColumns;
  SumTile state[StatesShared<N>::kColumns / 8] = {};
#pragma unroll
  for (int step = 0; step + 1 < kStages; ++step) {
    start(step);
  }
  for (int step = 0; step < chunks; ++step) {
    ptx::wait_for_copies<kStages - 2>();
    __syncthreads();  // the tiles are here, and nobody reads those of the step before
    start(step + kStages - 1);
    save_state<N>(states + (int64_t{chunk_at(step)} * s.heads + blockIdx.x) * s.state_elems(), s,
                  shared, state, row, column);
    add_chunk<N>(state, shared, step % kStages, row, column);
  }
}

template <bool kBackward>
void launch(const Mamba2Args& args, cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  dispatch_state(s, [&]<int kState>() {
    constexpr int N = kState / kBlocksPerHead;
    const auto kernel = states_kernel<N, kBackward>;
    allow_shared<StatesShared<N>>(kernel);
    kernel<<<dim3(static_cast<unsigned>(s.heads), static_cast<unsigned>(s.sequences()),
                  kBlocksPerHead),
             kThreads, sizeof(StatesShared<N>), stream>>>(args);
  });
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_mamba2_states(const Mamba2Args& args, cudaStream_t stream) {
  launch<false>(args, stream);
}

void launch_mamba2_d_states(const Mamba2Args& args, cudaStream_t stream) {
  launch<true>(args, stream);
}

}  // namespace braid
