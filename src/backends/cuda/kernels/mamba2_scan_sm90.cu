#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2_states.cuh"
#include "backends/cuda/kernels/mamba2_tiles_sm90.cuh"

// For Hopper: y of all rows. A block has a head of a sequence and walks through its chunks, so that
// states stay on the multiprocessor. One warpgroup, the walker, adds chunk after chunk to the state
// in its registers and writes it, rounded, to shared memory before each (mamba2_states.cuh). Two
// others, the readers, take turns at the chunks. With M = C B^T, computed beforehand once for all
// heads of a group,
//   y_i = decay to i S C_i + sum over j <= i of M_ij (decay from j to i) dt_j x_j + skip x_i
namespace braid {
namespace {

constexpr int kReaders = 2;
constexpr int kThreads = (1 + kReaders) * kWarpgroup;
constexpr int kWalkStages = 3;
constexpr int kReadStages = 2;
// Registers of a thread, of the multiprocessor's 65,536.
constexpr int kWalkerRegisters = 200;
constexpr int kReaderRegisters = 152;

template <int N>
struct ScanShared {
  struct Reader {
    RowTile x[kReadStages];
    FactorPanels<N> c[kReadStages];
  };
  RowTile rows[kWalkStages];
  FactorPanels<N> factors[kWalkStages];
  StatePanels<N> states[kReaders];  ///< before the chunk of each reader
  Reader readers[kReaders];
  HeadTile y[kReaders];
  StepTile steps[kReaders][kReadStages];
  WeightTile weights[kWalkStages];
};

/// Barriers of some threads of a block, by their numbers; 0 is that of all.
enum Barrier { kWalker = 1, kReader = 2, kStateIsWritten = 4, kStateIsRead = 6 };

template <int N>
__device__ void walk(const Mamba2Args& args, ScanShared<N>& shared) {
  constexpr int kTiles = N / 8;
  const int chunks = args.sizes.chunks_per_sequence();
  const int row = warp_row();
  ChunkWalk<RowTile, FactorPanels<N>, kWarpgroup, false> loads(args);
  const auto start_next = [&](int stage) {
    loads.start_next(shared.rows[stage], shared.factors[stage], shared.weights[stage]);
    ptx::end_copy_group();
  };
  SumTile state[kTiles] = {};
  EndState<kTiles>(args.sizes, row, 0).load(args.initial, state);
#pragma unroll
  for (int stage = 0; stage + 1 < kWalkStages; ++stage) {
    start_next(stage);
  }
  ptx::wait_for_copies<kWalkStages - 2>();
  publish_factors();
  ptx::sync_some(kWalker, kWarpgroup);
  WeighedRows weighed;
  weighed.load(shared.rows[0], shared.weights[0], row);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = chunk % kWalkStages;
    const int next = (chunk + 1) % kWalkStages;
    const int reader = chunk % kReaders;
    RoundedState<kTiles> before;
    round_and_decay(before, state, shared.weights[stage].whole_decay());
    start_adding(state, weighed, shared.factors[stage]);
    ptx::sync_some(kStateIsRead + reader, 2 * kWarpgroup);
    save_rounded(shared.states[reader], before, row, 0);
    ptx::wait_for_copies<kWalkStages - 3>();
    publish_factors();
    ptx::arrive_some(kStateIsWritten + reader, 2 * kWarpgroup);
    // The next tiles are here, and nobody multiplies those of the chunk before.
    ptx::sync_some(kWalker, kWarpgroup);
    start_next((chunk + kWalkStages - 1) % kWalkStages);
    weighed.load(shared.rows[next], shared.weights[next], row);  // behind the last of no use
    wait_for_products<0>(state);
  }
}

__device__ inline int chunk_rows(const Mamba2Sizes& s, int chunk) {
  return min(kSsdChunk, s.sequence - chunk * kSsdChunk);
}
/// The first row of this block's sequence; and of those with the rows that fill chunks.
__device__ inline int64_t first_row(const Mamba2Sizes& s) {
  return int64_t{blockIdx.y} * s.sequence;
}
__device__ inline int64_t first_step(const Mamba2Sizes& s) {
  return blockIdx.x * s.padded_rows() + int64_t{blockIdx.y} * s.chunks_per_sequence() * kSsdChunk;
}
__device__ inline int group_of_block(const Mamba2Sizes& s) {
  return static_cast<int>(blockIdx.x) / s.heads_per_group();
}

/// The loads of a reader, chunk by chunk.
template <int N>
class ReaderLoads {
 public:
  __device__ ReaderLoads(const Mamba2Args& args, int reader)
      : sizes_(args.sizes),
        reader_(reader),
        chunk_(reader),
        x_(first(args, reader) + static_cast<int>(blockIdx.x) * sizes_.head_size,
           sizes_.convolved(), sizes_.head_size, distance()),
        c_(first(args, reader) + factor_column(sizes_, group_of_block(sizes_)) + sizes_.factor(),
           sizes_.convolved(), sizes_.state, distance()) {
    const int thread = warpgroup_thread();
    steps_ = (thread < kVectors ? args.dt : args.decay) + first_step(sizes_) + reader * kSsdChunk +
             thread % kVectors * kVector;
  }

  __device__ void start_next(ScanShared<N>& shared) {
    if (chunk_ < sizes_.chunks_per_sequence()) {
      const int stage = chunk_ / kReaders % kReadStages;
      const int count = chunk_rows(sizes_, chunk_);
      x_.start_next(shared.readers[reader_].x[stage], count);
      c_.start_next(shared.readers[reader_].c[stage], count);
      if (const int thread = warpgroup_thread(); thread < 2 * kVectors) {
        StepTile& tile = shared.steps[reader_][stage];
        ptx::copy_16_async((thread < kVectors ? tile.dt : tile.decay) + thread % kVectors * kVector,
                           steps_, true);
      }
      steps_ += kReaders * kSsdChunk;
      chunk_ += kReaders;
    }
    ptx::end_copy_group();
  }

 private:
  static constexpr int kVector = 4;
  static constexpr int kVectors = kSsdChunk / kVector;

  __device__ static const Mamba2Data* first(const Mamba2Args& args, int reader) {
    const Mamba2Sizes& s = args.sizes;
    return args.xbc + (first_row(s) + int64_t{reader} * kSsdChunk) * s.convolved();
  }
  __device__ int64_t distance() const { return int64_t{kReaders} * kSsdChunk * sizes_.convolved(); }

  const Mamba2Sizes& sizes_;
  int reader_;
  int chunk_;
  TileWalk<RowTile, kWarpgroup> x_;
  TileWalk<FactorPanels<N>, kWarpgroup> c_;
  const float* steps_;
};

/// M of a chunk and group, as the threads of a warpgroup have it.
__device__ inline OwnSums products_of(const Mamba2Args& args, int64_t chunk, int group) {
  return OwnSums(reinterpret_cast<float4*>(args.products) +
                 (chunk * args.sizes.groups + group) * (kChunkTiles * kWarpgroup));
}

/// The weights of x_j in y_i, of a warp's 16 rows i.
using RowWeights = float2[kChunkTiles][2];

__device__ inline void weigh_products(RowWeights& weights, const float4 (&products)[kChunkTiles],
                                      const StepTile& steps, int row) {
#pragma unroll
  for (int begin = 0; begin < kSsdChunk; begin += 16) {
    if (begin > row) {
      continue;
    }
#pragma unroll
    for (int tile = begin / 8; tile < begin / 8 + 2; ++tile) {
      const float* const elems = &products[tile].x;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row + sum_row(half);
        const int j = 8 * tile + sum_column();
        weights[tile][half] = {elems[2 * half] * steps.between(j, i) * steps.dt[j],
                               elems[2 * half + 1] * steps.between(j + 1, i) * steps.dt[j + 1]};
      }
    }
  }
}

__device__ inline void round_weights(LeftTile (&left)[kChunkDepths], const RowWeights& weights) {
#pragma unroll
  for (int tile = 0; tile < kChunkTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      left[tile / 2][tile % 2 * 2 + half] = pack_bf16(weights[tile][half].x, weights[tile][half].y);
    }
  }
}

/// S C_i -> decay to i S C_i.
__device__ inline void decay_rows(SumTile (&y)[kHeadTiles], const StepTile& steps, int row) {
  const float decays[2] = {steps.from_begin(row + sum_row(0)), steps.from_begin(row + sum_row(1))};
#pragma unroll
  for (int tile = 0; tile < kHeadTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      y[tile][2 * half] *= decays[half];
      y[tile][2 * half + 1] *= decays[half];
    }
  }
}

/// y + skip x, rounded.
__device__ inline void round_rows(HeadTile& result, const SumTile (&y)[kHeadTiles],
                                  const RowTile& rows, float skip, int row) {
#pragma unroll
  for (int tile = 0; tile < kHeadTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + sum_row(half);
      const int p = 8 * tile + sum_column();
      const float2 x = load_pair(rows.at(i, p));
      *reinterpret_cast<uint32_t*>(result.at(i, p)) =
          pack_bf16(y[tile][2 * half] + skip * x.x, y[tile][2 * half + 1] + skip * x.y);
    }
  }
}

template <int N>
__device__ void read(const Mamba2Args& args, ScanShared<N>& shared, int reader, bool y_is_aligned) {
  const Mamba2Sizes& s = args.sizes;
  const int chunks = s.chunks_per_sequence();
  const int row = warp_row();
  const float skip = widen(args.skip[blockIdx.x]);
  auto& tiles = shared.readers[reader];
  HeadTile& result = shared.y[reader];
  const RowWriter<kSsdHeadSize> writer(
      args.y + first_row(s) * s.inner() + static_cast<int>(blockIdx.x) * s.head_size, s.inner(),
      row, 0, s.head_size, y_is_aligned);
  ReaderLoads<N> loads(args, reader);
  loads.start_next(shared);
  if (reader < chunks) {
    ptx::arrive_some(kStateIsRead + reader, 2 * kWarpgroup);
  }
  for (int chunk = reader; chunk < chunks; chunk += kReaders) {
    const int stage = chunk / kReaders % kReadStages;
    const StepTile& steps = shared.steps[reader][stage];
    float4 products[kChunkTiles];
    const OwnSums from = products_of(args, int64_t{blockIdx.y} * chunks + chunk, group_of_block(s));
#pragma unroll
    for (int tile = 0; tile < kChunkTiles; ++tile) {
      products[tile] = from[tile];
    }
    ptx::wait_for_copies<0>();
    publish_factors();
    ptx::sync_some(kReader + reader, kWarpgroup);  // and nobody reads the tiles of the chunk before
    loads.start_next(shared);
    ptx::sync_some(kStateIsWritten + reader, 2 * kWarpgroup);
    SumTile y[kHeadTiles];
    ptx::begin_products();
    start_products<N>(y, tiles.c[stage], shared.states[reader]);
    ptx::end_product_group();
    RowWeights weights = {};
    weigh_products(weights, products, steps, row);
    wait_for_products<0>(y);
    if (chunk + kReaders < chunks) {
      ptx::arrive_some(kStateIsRead + reader, 2 * kWarpgroup);
    }
    decay_rows(y, steps, row);
    LeftTile left[kChunkDepths];
    round_weights(left, weights);
    ptx::begin_products();
    start_products(y, left, tiles.x[stage], 0, true);
    ptx::end_product_group();
    wait_for_products<0>(y);
    round_rows(result, y, tiles.x[stage], skip, row);
    writer.save(result, int64_t{chunk} * kSsdChunk * s.inner(), chunk_rows(s, chunk));
  }
}

template <int N>
__global__ void __launch_bounds__(kThreads, 1)
    scan_kernel(const __grid_constant__ Mamba2Args args, bool y_is_aligned) {
  if constexpr (ptx::kIsHopper) {
    extern __shared__ __align__(1024) std::byte memory[];
    auto& shared = *reinterpret_cast<ScanShared<N>*>(memory);
    const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
    if (warpgroup == 0) {
      ptx::take_registers<kWalkerRegisters>();
      walk<N>(args, shared);
    } else {
      ptx::give_registers<kReaderRegisters>();
      read<N>(args, shared, warpgroup - 1, y_is_aligned);
    }
  }
}

template <int N>
struct ProductsShared {
  FactorPanels<N> b;
  FactorPanels<N> c;
};

/// M of a chunk and group.
template <int N>
__global__ void __launch_bounds__(kWarpgroup)
    products_kernel(const __grid_constant__ Mamba2Args args) {
  if constexpr (ptx::kIsHopper) {
    extern __shared__ __align__(1024) std::byte memory[];
    auto& shared = *reinterpret_cast<ProductsShared<N>*>(memory);
    const Mamba2Sizes& s = args.sizes;
    const ChunkRows rows(s, static_cast<int>(blockIdx.x));
    const int group = static_cast<int>(blockIdx.y);
    const Mamba2Data* const factors =
        args.xbc + rows.begin * s.convolved() + factor_column(s, group);
    start_load<kWarpgroup>(shared.b, factors, s.convolved(), rows.count, s.state);
    start_load<kWarpgroup>(shared.c, factors + s.factor(), s.convolved(), rows.count, s.state);
    ptx::end_copy_group();
    ptx::wait_for_copies<0>();
    publish_factors();
    __syncthreads();
    SumTile products[kChunkTiles];
    ptx::begin_products();
    start_products<N>(products, shared.c, shared.b);
    ptx::end_product_group();
    wait_for_products<0>(products);
    products_of(args, int64_t{blockIdx.x}, group).save(products);
  }
}

}  // namespace

void launch_mamba2_scan_sm90(const Mamba2Args& args, cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  dispatch_state(s, [&]<int N>() {
    const auto products = products_kernel<N>;
    allow_shared<ProductsShared<N>>(products);
    products<<<dim3(static_cast<unsigned>(s.chunks()), static_cast<unsigned>(s.groups)), kWarpgroup,
               sizeof(ProductsShared<N>), stream>>>(args);
    BRAID_CUDA_CHECK(cudaGetLastError());
    const auto kernel = scan_kernel<N>;
    allow_shared<ScanShared<N>>(kernel);
    kernel<<<dim3(static_cast<unsigned>(s.heads), static_cast<unsigned>(s.sequences())), kThreads,
             sizeof(ScanShared<N>), stream>>>(args, all_aligned(16, {args.y}));
  });
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace braid
