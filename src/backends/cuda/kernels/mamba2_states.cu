#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2_tiles.cuh"

// A block has a head of a sequence and keeps half of its state [P, N] in registers, f32, from chunk
// to chunk: a warp 16 rows and an eighth to a quarter of the columns. Per chunk
//   forward   S <- decay S + sum_j decay from j to the end, dt_j x_j B_j^T
//   backward  G <- decay G + sum_i decay from the begin to i, dy_i C_i^T
// where the state, rounded, is written before it changes. A sequence begins with 0, or with
// `initial` or `d_final`, and the state that it ends with is written, too, if there are
// `summaries`. The walk is sequential, so tiles of the next chunks are under way while one is
// added, and many warps with little work each hide the time from one instruction to the next.
namespace braid {
namespace {

constexpr int kRowWarps = kSsdHeadSize / 16;
constexpr int kColumnWarps = 2;
constexpr int kThreads = kRowWarps * kColumnWarps * kWarpSize;
constexpr int kBlocksPerHead = 2;
constexpr int kStages = 4;

/// What the rows of a chunk count: `to_end` or `from_begin`; then the last decays from the chunk's
/// begin, of which the very last is that over the whole chunk.
struct WeightTile {
  static constexpr int kVector = 4;
  static constexpr int kVectors = kSsdChunk / kVector + 1;
  alignas(16) float of[kVectors * kVector];

  __device__ float whole_decay() const { return of[kVectors * kVector - 1]; }
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

/// The loads of a block, chunk by chunk in the order of its walk.
template <int N, bool kBackward>
class ChunkWalk {
 public:
  __device__ explicit ChunkWalk(const Mamba2Args& args)
      : chunk_(kBackward ? args.sizes.chunks_per_sequence() - 1 : 0),
        left_(args.sizes.chunks_per_sequence()),
        sequence_(args.sizes.sequence),
        rows_(rows_walk(args)),
        factors_(factors_walk(args)),
        weights_(first_weights(args)) {}

  /// Starts the copies of the next chunk, if there is one.
  __device__ void start_next(StatesShared<N>& shared, int stage) {
    if (left_ == 0) {
      return;
    }
    const int count = min(kSsdChunk, sequence_ - chunk_ * kSsdChunk);
    rows_.start_next(shared.rows[stage], count);
    factors_.start_next(shared.factors[stage], count);
    if (threadIdx.x < WeightTile::kVectors) {
      ptx::copy_16_async(shared.weights[stage].of + WeightTile::kVector * threadIdx.x, weights_,
                         true);
    }
    weights_ += kStep * kSsdChunk;
    chunk_ += kStep;
    --left_;
  }

 private:
  static constexpr int kStep = kBackward ? -1 : 1;

  __device__ static ChunkRows first_rows(const Mamba2Sizes& s) {
    const int chunks = s.chunks_per_sequence();
    return ChunkRows(s, static_cast<int>(blockIdx.y) * chunks + (kBackward ? chunks - 1 : 0));
  }
  __device__ static TileWalk<HeadTile, kThreads> rows_walk(const Mamba2Args& args) {
    const Mamba2Sizes& s = args.sizes;
    const int64_t stride = kBackward ? s.inner() : s.convolved();
    const Mamba2Data* const from = (kBackward ? args.dy : args.xbc) + first_rows(s).begin * stride +
                                   static_cast<int>(blockIdx.x) * s.head_size;
    return {from, stride, s.head_size, kStep * kSsdChunk * stride};
  }
  __device__ static TileWalk<FactorTile<N>, kThreads> factors_walk(const Mamba2Args& args) {
    const Mamba2Sizes& s = args.sizes;
    const int begin = static_cast<int>(blockIdx.z) * N;
    const int column = factor_column(s, static_cast<int>(blockIdx.x) / s.heads_per_group()) +
                       (kBackward ? s.factor() : 0) + begin;
    const int64_t stride = s.convolved();
    return {args.xbc + first_rows(s).begin * stride + column, stride, s.state - begin,
            kStep * kSsdChunk * stride};
  }
  __device__ static const float* first_weights(const Mamba2Args& args) {
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t at = blockIdx.x * args.sizes.padded_rows() + first_rows(args.sizes).padded;
    const float* const weights = kBackward ? args.from_begin : args.to_end;
    return thread + 1 < WeightTile::kVectors
               ? weights + at + WeightTile::kVector * thread
               : args.from_begin + at + kSsdChunk - WeightTile::kVector;
  }

  int chunk_;
  int left_;
  int sequence_;
  TileWalk<HeadTile, kThreads> rows_;
  TileWalk<FactorTile<N>, kThreads> factors_;
  const float* weights_;
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

/// A warp's part of the state at the end of a sequence, in f32.
template <int N>
class EndState {
  static constexpr int kTiles = StatesShared<N>::kColumns / 8;

 public:
  /// States of this sequence and head, `state` columns wide.
  __device__ EndState(const Mamba2Sizes& s, int row, int column)
      : row_(row), column_(static_cast<int>(blockIdx.z) * N + column), sizes_(s) {}

  __device__ void load(const float* from, SumTile (&state)[kTiles]) const {
    for_each(from, state, [](const float* at, float& elem) { elem = *at; });
  }
  __device__ void save(float* to, SumTile (&state)[kTiles]) const {
    for_each(to, state, [](float* at, float& elem) { *at = elem; });
  }

 private:
  template <class T>
  __device__ void for_each(T* head, SumTile (&state)[kTiles], const auto& visit) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = row_ + sum_row(i / 2);
        const int column = column_ + 8 * tile + sum_column() + i % 2;
        if (row < sizes_.head_size && column < sizes_.state) {
          visit(head + int64_t{row} * sizes_.state + column, state[tile][i]);
        }
      }
    }
  }

  int row_;
  int column_;
  const Mamba2Sizes& sizes_;
};

/// Writes a warp's part of the state, chunk by chunk, by way of shared memory, so that rows are
/// written in pieces of 16 bytes.
template <int N, bool kBackward>
class StateWriter {
 public:
  __device__ StateWriter(const Mamba2Args& args, int row, int column)
      : row_(row), column_(column), row_stride_(args.sizes.state) {
    const Mamba2Sizes& s = args.sizes;
    const int chunks = s.chunks_per_sequence();
    const int first = static_cast<int>(blockIdx.y) * chunks + (kBackward ? chunks - 1 : 0);
    distance_ = s.heads * s.state_elems();
    const int n = static_cast<int>(blockIdx.z) * N + column + own_column();
    const bool is_written = (kBackward ? args.d_states : args.states) != nullptr;
    rows_ = is_written && n < s.state ? s.head_size - row - own_row() : 0;
    to_ = (kBackward ? args.d_states : args.states) + first * distance_ +
          blockIdx.x * s.state_elems() + int64_t{row + own_row()} * s.state + n;
    distance_ = kBackward ? -distance_ : distance_;
  }

  __device__ void save_next(StatesShared<N>& shared,
                            const SumTile (&state)[StatesShared<N>::kColumns / 8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int tile = 0; tile < kColumns / 8; ++tile) {
        *reinterpret_cast<uint32_t*>(
            shared.state.at(row_ + sum_row(half), column_ + 8 * tile + sum_column())) =
            pack_bf16(state[tile][2 * half], state[tile][2 * half + 1]);
      }
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 16; r += kRowsAtOnce) {
      if (r < rows_) {
        store_vector<true>(
            to_ + r * row_stride_,
            load_vector<kVector, true>(
                shared.state.at(row_ + r + own_row(), column_ + own_column()), kVector),
            kVector);
      }
    }
    __syncwarp();
    to_ += distance_;
  }

 private:
  static constexpr int kColumns = StatesShared<N>::kColumns;
  static constexpr int kVector = 8;
  static constexpr int kVectors = kColumns / kVector;
  static constexpr int kRowsAtOnce = kWarpSize / kVectors;

  __device__ static int own_row() {
    return lane_index() / kVectors;
  }
  __device__ static int own_column() {
    return lane_index() % kVectors * kVector;
  }

  int row_;
  int column_;
  int rows_;  ///< of the head from this lane's first on
  int64_t row_stride_;
  int64_t distance_;
  Mamba2Data* to_;
};

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
  const int chunks = args.sizes.chunks_per_sequence();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int row = warp % kRowWarps * 16;
  const int column = warp / kRowWarps * StatesShared<N>::kColumns;
  ChunkWalk<N, kBackward> walk(args);
  StateWriter<N, kBackward> writer(args, row, column);
  SumTile state[StatesShared<N>::kColumns / 8] = {};
  const EndState<N> end(args.sizes, row, column);
  if (const float* const first = kBackward ? args.d_final : args.initial; first != nullptr) {
    end.load(first + (blockIdx.y * args.sizes.heads + blockIdx.x) * args.sizes.state_elems(),
             state);
  }
#pragma unroll
  for (int stage = 0; stage + 1 < kStages; ++stage) {
    walk.start_next(shared, stage);
    ptx::end_copy_group();
  }
  for (int step = 0; step < chunks; ++step) {
    ptx::wait_for_copies<kStages - 2>();
    __syncthreads();  // the tiles are here, and nobody reads those of the step before
    walk.start_next(shared, (step + kStages - 1) % kStages);
    ptx::end_copy_group();
    writer.save_next(shared, state);
    add_chunk<N>(state, shared, step % kStages, row, column);
  }
  if (args.summaries != nullptr) {
    end.save(args.summaries + blockIdx.y * args.sizes.heads * (args.sizes.state_elems() + 1) +
                 blockIdx.x * args.sizes.state_elems(),
             state);
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
