#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2_tiles.cuh"

// A block has a head of a sequence and keeps its state [P, N] in registers, f32, from chunk to
// chunk: a warp 16 rows and half of the columns. Per chunk
//   forward   S <- decay S + sum_j decay from j to the end, dt_j x_j B_j^T
//   backward  G <- decay G + sum_i decay from the begin to i, dy_i C_i^T
// where the state, rounded, is written before it changes. The walk is sequential, so tiles of the
// next chunks are under way while one is added.
namespace braid {
namespace {

constexpr int kRowWarps = kSsdHeadSize / 16;
constexpr int kColumnWarps = 2;
constexpr int kThreads = kRowWarps * kColumnWarps * kWarpSize;
constexpr int kStages = 4;

template <int N>
struct StatesShared {
  HeadTile rows[kStages];
  FactorTile<N> factors[kStages];
  StepTile steps[kStages];
};

template <int N, bool kBackward>
__device__ void start_load(const Mamba2Args& args, StatesShared<N>& shared, int chunk, int stage) {
  const Mamba2Sizes& s = args.sizes;
  const ChunkRows rows(s, chunk);
  const int head = static_cast<int>(blockIdx.x);
  const int column = factor_column(s, head / s.heads_per_group()) + (kBackward ? s.factor() : 0);
  const Mamba2Data* const from =
      kBackward ? args.dy + rows.begin * s.inner() : args.xbc + rows.begin * s.convolved();
  shared.rows[stage].template start_load<kThreads>(
      from + head * s.head_size, kBackward ? s.inner() : s.convolved(), rows.count, s.head_size);
  shared.factors[stage].template start_load<kThreads>(
      args.xbc + rows.begin * s.convolved() + column, s.convolved(), rows.count, s.state);
  shared.steps[stage].start_load(args, rows, head);
}

/// Scales the elements of a factor by the weights of 16 rows of the chunk, which are its depth.
template <bool kBackward>
__device__ void weigh(LeftTile& tile, const StepTile& steps, int begin) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int j = begin + 8 * half + sum_column();
    const float first = kBackward ? steps.from_begin(j) : steps.to_end(j) * steps.dt[j];
    const float second =
        kBackward ? steps.from_begin(j + 1) : steps.to_end(j + 1) * steps.dt[j + 1];
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      const float2 pair = unpack_bf16(tile[i]);
      tile[i] = pack_bf16(pair.x * first, pair.y * second);
    }
  }
}

/// The columns of a state [P, N] that a warp has.
template <int N>
constexpr int kWarpColumns = N / kColumnWarps;

template <int N>
__device__ void save_state(Mamba2Data* to, const Mamba2Sizes& s,
                           const SumTile (&state)[kWarpColumns<N> / 8], int row, int column) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int p = row + sum_row(half);
#pragma unroll
    for (int tile = 0; tile < kWarpColumns<N> / 8; ++tile) {
      const int n = column + 8 * tile + sum_column();
      if (p < s.head_size && n < s.state) {
        *reinterpret_cast<uint32_t*>(to + p * s.state + n) =
            pack_bf16(state[tile][2 * half], state[tile][2 * half + 1]);
      }
    }
  }
}

/// Adds a chunk to a warp's part of the state.
template <int N, bool kBackward>
__device__ void add_chunk(SumTile (&state)[kWarpColumns<N> / 8], StatesShared<N>& shared, int stage,
                          int row, int column) {
  const StepTile& steps = shared.steps[stage];
  const float decay = ptx::exp2_approx(steps.whole());
#pragma unroll
  for (int tile = 0; tile < kWarpColumns<N> / 8; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      state[tile][i] *= decay;
    }
  }
#pragma unroll
  for (int depth = 0; depth < kSsdChunk; depth += 16) {
    LeftTile left;
    load_left_transposed(left, shared.rows[stage].at(depth, row), HeadTile::kStride);
    weigh<kBackward>(left, steps, depth);
#pragma unroll
    for (int n = 0; n < kWarpColumns<N>; n += 16) {
      add_products(state[n / 8], state[n / 8 + 1], left,
                   load_right_transposed(shared.factors[stage].at(depth, column + n),
                                         FactorTile<N>::kStride));
    }
  }
}

template <int N, bool kBackward>
__global__ void __launch_bounds__(kThreads) states_kernel(const __grid_constant__ Mamba2Args args) {
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
  Mamba2Data* const states = kBackward ? args.d_states : args.states;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int row = warp % kRowWarps * 16;
  const int column = warp / kRowWarps * kWarpColumns<N>;
  SumTile state[kWarpColumns<N> / 8] = {};
#pragma unroll
  for (int step = 0; step + 1 < kStages; ++step) {
    start(step);
  }
  for (int step = 0; step < chunks; ++step) {
    ptx::wait_for_copies<kStages - 2>();
    __syncthreads();  // the tiles are here, and nobody reads those of the step before
    start(step + kStages - 1);
    save_state<N>(states + (int64_t{chunk_at(step)} * s.heads + blockIdx.x) * s.state_elems(), s,
                  state, row, column);
    add_chunk<N, kBackward>(state, shared, step % kStages, row, column);
  }
}

template <bool kBackward>
void launch(const Mamba2Args& args, cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  dispatch_state(s, [&]<int N>() {
    const auto kernel = states_kernel<N, kBackward>;
    allow_shared<StatesShared<N>>(kernel);
    kernel<<<dim3(static_cast<unsigned>(s.heads), static_cast<unsigned>(s.sequences())), kThreads,
             sizeof(StatesShared<N>), stream>>>(args);
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
