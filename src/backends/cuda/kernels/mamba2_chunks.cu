#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2_tiles.cuh"

// For GPUs other than Hopper's: y of a chunk, for the heads of one block; a warp has 16 rows and
// half of a head. With M = C B^T, once for all heads:
//   y_i = decay to i S C_i + sum over j <= i of M_ij (decay from j to i) dt_j x_j + skip x_i
namespace braid {
namespace {

constexpr int kRowWarps = kSsdChunk / 16;
constexpr int kColumnWarps = 2;
constexpr int kThreads = kRowWarps * kColumnWarps * kWarpSize;
constexpr int kColumns = kSsdHeadSize / kColumnWarps;
constexpr int kStages = 2;

template <int N>
struct ChunksShared {
  FactorTile<N> b;
  FactorTile<N> c;
  HeadTile x[kStages];
  StateTile<N> states[kStages];
  StepTile steps[kStages];
  HeadTile y;
};

/// The loads of a block, head by head.
template <int N>
class HeadWalk {
 public:
  __device__ HeadWalk(const Mamba2Args& args, const ChunkRows& rows, int first_head)
      : rows_(rows.count),
        head_size_(args.sizes.head_size),
        x_(walk_head_rows<HeadTile, kThreads>(args.sizes, args.xbc, args.sizes.convolved(), rows,
                                              first_head)),
        states_(walk_head_states<StateTile<N>, kThreads>(args.sizes, args.states, first_head)),
        steps_(args, rows, first_head) {}

  __device__ void start_next(ChunksShared<N>& shared, int stage) {
    x_.start_next(shared.x[stage], rows_);
    states_.start_next(shared.states[stage], head_size_);
    steps_.start_next(shared.steps[stage]);
    ptx::end_copy_group();
  }

 private:
  int rows_;
  int head_size_;
  TileWalk<HeadTile, kThreads> x_;
  TileWalk<StateTile<N>, kThreads> states_;
  StepWalk steps_;
};

/// M [16, 64] of the warp's rows; only columns up to its last row.
template <int N>
__device__ void multiply_factors(SumTile (&products)[kChunkTiles], ChunksShared<N>& shared,
                                 int row) {
#pragma unroll
  for (int depth = 0; depth < N; depth += 16) {
    LeftTile left;
    load_left(left, shared.c.at(row, depth), FactorTile<N>::kStride);
#pragma unroll
    for (int j = 0; j < kSsdChunk; j += 16) {
      if (j <= row) {
        add_products(products[j / 8], products[j / 8 + 1], left,
                     load_right(shared.b.at(j, depth), FactorTile<N>::kStride));
      }
    }
  }
}

/// The weights of 16 rows j in the sums of y.
__device__ inline void weigh_products(LeftTile& left, const SumTile (&products)[kChunkTiles],
                                      const StepTile& steps, int row, int begin) {
  SumTile weights[2];
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = begin + 8 * tile + sum_column() + i % 2;
      weights[tile][i] =
          products[begin / 8 + tile][i] * steps.between(j, row + sum_row(i / 2)) * steps.dt[j];
    }
  }
  to_left(left, weights[0], weights[1]);
}

template <int N>
__device__ void compute_head(ChunksShared<N>& shared, const SumTile (&products)[kChunkTiles],
                             int row, int column, int stage, float skip) {
  const StepTile& steps = shared.steps[stage];
  SumTile y[kColumns / 8] = {};
#pragma unroll
  for (int depth = 0; depth < N; depth += 16) {
    LeftTile left;
    load_left(left, shared.c.at(row, depth), FactorTile<N>::kStride);
#pragma unroll
    for (int p = 0; p < kColumns; p += 16) {
      add_products(y[p / 8], y[p / 8 + 1], left,
                   load_right(shared.states[stage].at(column + p, depth), StateTile<N>::kStride));
    }
  }
  const float decays[2] = {steps.from_begin(row + sum_row(0)), steps.from_begin(row + sum_row(1))};
#pragma unroll
  for (int tile = 0; tile < kColumns / 8; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[tile][i] *= decays[i / 2];
    }
  }
#pragma unroll
  for (int j = 0; j < kSsdChunk; j += 16) {
    if (j <= row) {
      LeftTile left;
      weigh_products(left, products, steps, row, j);
#pragma unroll
      for (int p = 0; p < kColumns; p += 16) {
        add_products(y[p / 8], y[p / 8 + 1], left,
                     load_right_transposed(shared.x[stage].at(j, column + p), HeadTile::kStride));
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < kColumns / 8; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + sum_row(half);
      const int p = column + 8 * tile + sum_column();
      const float2 x = load_pair(shared.x[stage].at(i, p));
      *reinterpret_cast<uint32_t*>(shared.y.at(i, p)) =
          pack_bf16(y[tile][2 * half] + skip * x.x, y[tile][2 * half + 1] + skip * x.y);
    }
  }
}

template <int N>
__global__ void __launch_bounds__(kThreads, 2)
    chunks_kernel(const __grid_constant__ Mamba2Args args, bool y_is_aligned) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<ChunksShared<N>*>(memory);
  const Mamba2Sizes& s = args.sizes;
  const ChunkRows rows(s, static_cast<int>(blockIdx.x));
  const BlockHeads heads(s);
  const Mamba2Data* const factors =
      args.xbc + rows.begin * s.convolved() + factor_column(s, heads.group);
  start_load<kThreads>(shared.b, factors, s.convolved(), rows.count, s.state);
  start_load<kThreads>(shared.c, factors + s.factor(), s.convolved(), rows.count, s.state);
  HeadWalk<N> walk(args, rows, heads.first);
  walk.start_next(shared, 0);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int row = warp % kRowWarps * 16;
  const int column = warp / kRowWarps * kColumns;
  const RowWriter<kColumns> writer(args.y + rows.begin * s.inner() + heads.first * s.head_size,
                                   s.inner(), row, column, s.head_size, y_is_aligned);
  SumTile products[kChunkTiles] = {};
  for (int h = 0; h < heads.count; ++h) {
    ptx::wait_for_copies<0>();
    __syncthreads();  // the tiles are here, and nobody reads those of the head before
    if (h + 1 < heads.count) {
      walk.start_next(shared, (h + 1) % kStages);
    }
    if (h == 0) {
      multiply_factors<N>(products, shared, row);
    }
    compute_head<N>(shared, products, row, column, h % kStages, widen(args.skip[heads.first + h]));
    writer.save(shared.y, int64_t{h} * s.head_size, rows.count);
  }
}

}  // namespace

void launch_mamba2_chunks(const Mamba2Args& args, cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  dispatch_state(s, [&]<int N>() {
    const auto kernel = chunks_kernel<N>;
    allow_shared<ChunksShared<N>>(kernel);
    kernel<<<dim3(static_cast<unsigned>(s.chunks()), static_cast<unsigned>(s.groups * s.parts())),
             kThreads, sizeof(ChunksShared<N>), stream>>>(args, all_aligned(16, {args.y}));
  });
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace braid
