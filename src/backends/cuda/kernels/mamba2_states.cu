#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2_tiles.cuh"

// A block has a head of a sequence and keeps its state [P, N] in registers, f32, from chunk to
// chunk: a warp 16 rows. Per chunk
//   forward   S <- decay S + sum_j decay from j to the end, dt_j x_j B_j^T
//   backward  G <- decay G + sum_i decay from the begin to i, dy_i C_i^T
// where the state, rounded, is written before it changes.
namespace braid {
namespace {

constexpr int kThreads = kSsdHeadSize / 16 * kWarpSize;
constexpr int kStages = 2;

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

template <int N>
__device__ void save_state(Mamba2Data* to, const Mamba2Sizes& s, const SumTile (&state)[N / 8],
                           int row) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int p = row + sum_row(half);
#pragma unroll
    for (int tile = 0; tile < N / 8; ++tile) {
      const int n = 8 * tile + sum_column();
      if (p < s.head_size && n < s.state) {
        *reinterpret_cast<uint32_t*>(to + p * s.state + n) =
            pack_bf16(state[tile][2 * half], state[tile][2 * half + 1]);
      }
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
  Mamba2Data* const states = kBackward ? args.d_states : args.states;
  const int row = static_cast<int>(threadIdx.x) / kWarpSize * 16;
  SumTile state[N / 8] = {};
  start_load<N, kBackward>(args, shared, chunk_at(0), 0);
  ptx::end_copy_group();
  for (int step = 0; step < chunks; ++step) {
    const int stage = step % kStages;
    if (step + 1 < chunks) {
      start_load<N, kBackward>(args, shared, chunk_at(step + 1), (step + 1) % kStages);
    }
    ptx::end_copy_group();
    save_state<N>(states + (int64_t{chunk_at(step)} * s.heads + blockIdx.x) * s.state_elems(), s,
                  state, row);
    ptx::wait_for_copies<1>();
    __syncthreads();
    const StepTile& steps = shared.steps[stage];
    const float decay = ptx::exp2_approx(steps.whole());
#pragma unroll
    for (int tile = 0; tile < N / 8; ++tile) {
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
      for (int n = 0; n < N; n += 16) {
        add_products(
            state[n / 8], state[n / 8 + 1], left,
            load_right_transposed(shared.factors[stage].at(depth, n), FactorTile<N>::kStride));
      }
    }
    __syncthreads();
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
