#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2_states.cuh"

// For GPUs other than Hopper's. A block keeps half of a head's state: a warp 16 rows and an eighth
// to a quarter of the columns. The state, rounded, is written before a chunk changes it, and the
// state that a sequence ends with is written, too, if there are `summaries`. The walk is
// sequential, so tiles of the next chunks are under way while one is added, and many warps with
// little work each hide the time from one instruction to the next.
namespace braid {
namespace {

constexpr int kRowWarps = kSsdHeadSize / 16;
constexpr int kColumnWarps = 2;
constexpr int kThreads = kRowWarps * kColumnWarps * kWarpSize;
constexpr int kBlocksPerHead = 2;
constexpr int kStages = 4;

/// N columns of the state, of which a warp has kColumns.
template <int N>
struct StatesShared {
  static constexpr int kColumns = N / kColumnWarps;
  HeadTile rows[kStages];
  FactorTile<N> factors[kStages];
  WeightTile weights[kStages];
  StateTile<N> state;  ///< as it is written
};

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

/// Adds a chunk to a warp's part of the state.
template <int N>
__device__ void add_chunk(SumTile (&state)[StatesShared<N>::kColumns / 8], StatesShared<N>& shared,
                          int stage, int row, int column) {
  constexpr int kColumns = StatesShared<N>::kColumns;
  const WeightTile& weights = shared.weights[stage];
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
  const int chunks = args.sizes.chunks_per_sequence();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int row = warp % kRowWarps * 16;
  constexpr int kColumns = StatesShared<N>::kColumns;
  const int column = warp / kRowWarps * kColumns;
  ChunkWalk<HeadTile, FactorTile<N>, kThreads, kBackward> walk(args);
  StateWriter<StateTile<N>, kColumns, kBackward> writer(args, row, column);
  SumTile state[kColumns / 8] = {};
  const EndState<kColumns / 8> end(args.sizes, row, static_cast<int>(blockIdx.z) * N + column);
  end.load(kBackward ? args.d_final : args.initial, state);
  const auto start_next = [&](int stage) {
    walk.start_next(shared.rows[stage], shared.factors[stage], shared.weights[stage]);
    ptx::end_copy_group();
  };
#pragma unroll
  for (int stage = 0; stage + 1 < kStages; ++stage) {
    start_next(stage);
  }
  for (int step = 0; step < chunks; ++step) {
    const int stage = step % kStages;
    ptx::wait_for_copies<kStages - 2>();
    __syncthreads();  // the tiles are here, and nobody reads those of the step before
    start_next((step + kStages - 1) % kStages);
    RoundedState<kColumns / 8> before;
    round_and_decay(before, state, shared.weights[stage].whole_decay());
    writer.save_next(shared.state, before);
    add_chunk<N>(state, shared, stage, row, column);
  }
  end.save(args.summaries, state);
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
