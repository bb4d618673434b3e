#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2_states.cuh"
#include "backends/cuda/kernels/mamba2_tiles_sm90.cuh"

// For Hopper. A block, one warpgroup, keeps 64 columns of a head's state: a warp 16 rows. The
// state, rounded, is written before a chunk changes it, and the state that a sequence ends with is
// written, too, if there are `summaries`. The walk is sequential, so tiles of the next chunks are
// under way while one is added, and all that does not need the sum is done while the tensor cores
// work on it.
namespace braid {
namespace {

constexpr int kColumns = 64;  ///< of the state, of a block
constexpr int kTiles = kColumns / 8;
constexpr int kStages = 4;

using ColumnTile = FactorPanels<kColumns>;

struct StatesShared {
  RowTile rows[kStages];
  ColumnTile factors[kStages];
  StateTile<kColumns> state;  ///< as it is written
  WeightTile weights[kStages];
};

/// While a chunk is added to the state, what the state was before is written, and the next chunk's
/// rows are loaded.
template <bool kBackward>
__global__ void __launch_bounds__(kWarpgroup, 3)
    states_kernel(const __grid_constant__ Mamba2Args args) {
  if constexpr (ptx::kIsHopper) {
    extern __shared__ __align__(1024) std::byte memory[];
    auto& shared = *reinterpret_cast<StatesShared*>(memory);
    const int chunks = args.sizes.chunks_per_sequence();
    const int row = static_cast<int>(threadIdx.x) / kWarpSize * 16;
    ChunkWalk<RowTile, ColumnTile, kWarpgroup, kBackward> walk(args);
    StateWriter<StateTile<kColumns>, kColumns, kBackward> writer(args, row, 0);
    SumTile state[kTiles] = {};
    const EndState<kTiles> end(args.sizes, row, static_cast<int>(blockIdx.z) * kColumns);
    end.load(kBackward ? args.d_final : args.initial, state);
    const auto start_next = [&](int stage) {
      walk.start_next(shared.rows[stage], shared.factors[stage], shared.weights[stage]);
      ptx::end_copy_group();
    };
#pragma unroll
    for (int stage = 0; stage + 1 < kStages; ++stage) {
      start_next(stage);
    }
    ptx::wait_for_copies<kStages - 2>();
    publish_factors();
    __syncthreads();
    WeighedRows weighed;
    weighed.load(shared.rows[0], shared.weights[0], row);
    for (int step = 0; step < chunks; ++step) {
      const int stage = step % kStages;
      RoundedState<kTiles> before;
      round_and_decay(before, state, shared.weights[stage].whole_decay());
      start_adding(state, weighed, shared.factors[stage]);
      writer.save_next(shared.state, before);
      ptx::wait_for_copies<kStages - 3>();
      publish_factors();
      __syncthreads();  // the next tiles are here, and nobody multiplies those of the step before
      start_next((step + kStages - 1) % kStages);
      const int next = (step + 1) % kStages;  // of no use behind the last step
      weighed.load(shared.rows[next], shared.weights[next], row);
      wait_for_products<0>(state);
    }
    end.save(args.summaries, state);
  }
}

template <bool kBackward>
void launch(const Mamba2Args& args, cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  const auto kernel = states_kernel<kBackward>;
  allow_shared<StatesShared>(kernel);
  const dim3 grid(static_cast<unsigned>(s.heads), static_cast<unsigned>(s.sequences()),
                  static_cast<unsigned>(ceil_div(s.state, kColumns)));
  kernel<<<grid, kWarpgroup, sizeof(StatesShared), stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_mamba2_states_sm90(const Mamba2Args& args, cudaStream_t stream) {
  launch<false>(args, stream);
}

void launch_mamba2_d_states_sm90(const Mamba2Args& args, cudaStream_t stream) {
  launch<true>(args, stream);
}

}  // namespace braid
