// Two blocks of threads, a cluster, compute tiles of 128 x 128 side by side: both need the same
// rows of a, of which each brings half for both, so a multiprocessor reads 24 instead of 32 KiB
// from L2 for 128 elements of the depth. In a block, one thread keeps a ring of stages full; two
// warpgroups multiply 64 rows each. While one adds a product with its scales to the sums, which
// takes about a third as long, the tensor cores work for the other.
//
// As many clusters as fit walk through the tiles of all experts, whose numbers they read from the
// offsets on the device.
#include "backends/cuda/kernels/scaled_grouped_sm90.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/ptx_sm90.cuh"
#include "backends/cuda/kernels/tensor_map.h"
#include "ops/quantize_grouped.h"

namespace braid {
namespace {

constexpr int kTile = 128;  // rows and columns of a block's tile, and depth of a stage
constexpr int kHalf = 64;   // rows of a warpgroup
constexpr int kCluster = 2;
constexpr int kWarpgroup = 128;
constexpr int kThreads = 3 * kWarpgroup;
constexpr int kFactorBytes = kTile * kTile;
constexpr int kScaleBytes = 640;  // room for the scales of a factor: 128, and up to three before

// Results on their way to memory. f32: boxes of 32 columns, swizzled. bf16: rows with a gap, so
// that neither side has bank conflicts.
constexpr int kBoxColumns = 32;
constexpr int kBoxes = kTile / kBoxColumns;
constexpr int kRowBytes = kBoxColumns * static_cast<int>(sizeof(float));
constexpr int kBoxBytes = kHalf * kRowBytes;
constexpr int kRowPitch = kTile * static_cast<int>(sizeof(__nv_bfloat16)) + 16;

struct Maps {
  CUtensorMap a;
  CUtensorMap b;
  CUtensorMap a_scales;
  CUtensorMap b_scales;  // of columns alone
  CUtensorMap c;         // likewise
};

struct Problem {
  const int32_t* offsets = nullptr;
  int num_experts = 0;
  int rows = 0;  // of an expert's result; those of ScaledGroupedRows are in offsets
  int columns = 0;
  int depth = 0;                    // of ScaledGroupedRows
  int b_rows = 0;                   // between the matrices of two experts in b
  int b_depth = 0;                  // likewise
  const float* b_scales = nullptr;  // squares
  int b_scale_pitch = 0;
  __nv_bfloat16* c = nullptr;
  bool accumulate = false;
};

/// kGrowsDepth: an expert's rows are the depth of its product, as for weight gradients.
template <bool kGrowsDepth>
struct Shared {
  static constexpr int kStages = kGrowsDepth ? 4 : 5;
  static constexpr int kHalfBytes = kGrowsDepth ? kBoxes * kBoxBytes : kHalf * kRowPitch;
  static constexpr int kScalesAt = kStages * 2 * kFactorBytes + 2 * kHalfBytes;
  static constexpr int kBarriersAt = kScalesAt + kStages * 2 * kScaleBytes;
  static constexpr int kBarriers = 2 * kStages + 4;
  static constexpr int kBytes = kBarriersAt + kBarriers * 8;
  static constexpr int kAlignment = 1024;  // of swizzled tiles

  char* base;

  __device__ uint32_t address(int offset) const { return ptx::shared_address(base) + offset; }
  __device__ uint32_t factor(int stage, int which) const {
    return address((2 * stage + which) * kFactorBytes);
  }
  __device__ char* results(int half) const {
    return base + kStages * 2 * kFactorBytes + half * kHalfBytes;
  }
  __device__ uint32_t scales(int stage, int which) const {
    return address(kScalesAt + (2 * stage + which) * kScaleBytes);
  }
  /// Factors have come to the stage.
  __device__ uint32_t full(int stage) const { return address(kBarriersAt + 8 * stage); }
  /// Both blocks of the cluster have read them.
  __device__ uint32_t empty(int stage) const { return full(kStages + stage); }
  /// The place of results is free and, to accumulate, has those so far.
  __device__ uint32_t ready(int half) const { return full(2 * kStages + half); }
  /// Results are there.
  __device__ uint32_t made(int half) const { return full(2 * kStages + 2 + half); }
};

struct Tile {
  int expert = 0;
  int row = 0;      // of a
  int row_end = 0;  // of the expert
  int column = 0;   // of the cluster's first tile
  int depth = 0;    // where it begins in a
  int steps = 0;    // of 128 elements of the depth
};

/// The tiles of a cluster. Experts follow each other; in an expert, all columns of some rows.
template <bool kGrowsDepth>
class Walk {
 public:
  __device__ explicit Walk(const Problem& problem)
      : p_(problem),
        index_(static_cast<int>(blockIdx.x) / kCluster),
        step_(static_cast<int>(gridDim.x) / kCluster),
        columns_((problem.columns + kCluster * kTile - 1) / (kCluster * kTile)) {}

  /// Of tiles that have something to do. False at the end.
  __device__ bool next(Tile& tile) {
    for (; expert_ < p_.num_experts; ++expert_) {
      const int begin = p_.offsets[expert_];
      const int end = p_.offsets[expert_ + 1];
      const int steps = (end - begin + kTile - 1) / kTile;
      const bool is_idle = kGrowsDepth && p_.accumulate && steps == 0;
      const int height = is_idle ? 0 : kGrowsDepth ? p_.rows / kTile : steps;
      const int local = index_ - first_;
      if (local < height * columns_) {
        place(tile, local, height);
        tile.expert = expert_;
        tile.row += kGrowsDepth ? 0 : begin;
        tile.row_end = kGrowsDepth ? p_.rows : end;
        tile.depth = kGrowsDepth ? static_cast<int>(GroupedColumns::begin(begin, expert_)) : 0;
        tile.steps = kGrowsDepth ? steps : p_.depth / kTile;
        index_ += step_;
        return true;
      }
      first_ += height * columns_;
    }
    return false;
  }

 private:
  static constexpr int kBand = 16;  // tiles

  /// Bands of rows, so that what clusters read at a time fits into L2.
  __device__ void place(Tile& tile, int local, int height) const {
    const int band = local / (kBand * columns_);
    const int in_band = local - band * kBand * columns_;
    const int rows = min(kBand, height - band * kBand);
    tile.row = (band * kBand + in_band % rows) * kTile;
    tile.column = in_band / rows * kCluster * kTile;
  }

  const Problem& p_;
  int index_;
  int step_;
  int columns_;
  int expert_ = 0;
  int first_ = 0;  // number of the expert's first tile
};

template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// ---- one thread brings factors and scales

template <bool kGrowsDepth>
__device__ void load_factors(const Maps& maps, const Problem& p, const Shared<kGrowsDepth>& shared,
                             int block) {
  Walk<kGrowsDepth> walk(p);
  Ring<Shared<kGrowsDepth>::kStages> ring;
  Tile tile;
  while (walk.next(tile)) {
    const int column = tile.column + block * kTile;
    const int b_row = tile.expert * p.b_rows + column;
    for (int step = 0; step < tile.steps; ++step) {
      const int stage = ring.stage;
      const uint32_t full = shared.full(stage);
      const int depth = tile.depth + step * kTile;
      ptx::wait_for_phase(shared.empty(stage), ring.parity ^ 1);
      // An address of scales must be a multiple of 16 bytes, and an expert's rows begin anywhere.
      constexpr int kScales = kGrowsDepth ? 2 * kTile : kTile + 4;
      ptx::arrive_and_expect(full, 2 * kFactorBytes + kScales * static_cast<int>(sizeof(float)));
      ptx::load_tile_of_two(shared.factor(stage, 0) + block * kFactorBytes / 2, &maps.a, full,
                            depth, tile.row + block * kHalf);
      ptx::load_tile(shared.factor(stage, 1), &maps.b, full, tile.expert * p.b_depth + depth,
                     b_row);
      ptx::load_tile(shared.scales(stage, 0), &maps.a_scales, full, tile.row / 4 * 4,
                     depth / kTile);
      if constexpr (kGrowsDepth) {
        ptx::load_tile(shared.scales(stage, 1), &maps.b_scales, full, column, depth / kTile);
      }
      ring.advance();
    }
  }
}

// ---- f32 results: one thread of each half brings those so far, and stores the new ones

template <bool kGrowsDepth>
__device__ void move_results(const Maps& maps, const Problem& p, const Shared<kGrowsDepth>& shared,
                             int block, int half) {
  Walk<kGrowsDepth> walk(p);
  Tile tile;
  uint32_t parity = 0;
  const uint32_t results = ptx::shared_address(shared.results(half));
  while (walk.next(tile)) {
    const int column = tile.column + block * kTile;
    const int row = tile.expert * p.rows + tile.row + half * kHalf;
    if (p.accumulate) {
      ptx::arrive_and_expect(shared.ready(half), Shared<kGrowsDepth>::kHalfBytes);
      for (int box = 0; box < kBoxes; ++box) {
        ptx::load_tile(results + box * kBoxBytes, &maps.c, shared.ready(half),
                       column + box * kBoxColumns, row);
      }
    } else {
      ptx::arrive(shared.ready(half));
    }
    ptx::wait_for_phase(shared.made(half), parity);
    parity ^= 1;
    for (int box = 0; box < kBoxes; ++box) {
      ptx::store_tile(&maps.c, results + box * kBoxBytes, column + box * kBoxColumns, row);
    }
    ptx::wait_for_stored_tiles();
  }
}

// ---- two warpgroups multiply

struct RowScales {
  float first;   // of the thread's row
  float second;  // of the row eight rows below
};

template <bool kGrowsDepth>
class Multiplier {
 public:
  __device__ Multiplier(const Problem& problem, const Shared<kGrowsDepth>& shared, int block)
      : p_(problem),
        shared_(shared),
        block_(block),
        half_(static_cast<int>(threadIdx.x) / kWarpgroup),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_(static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + lane_ / 4) {}

  __device__ void run() {
    Walk<kGrowsDepth> walk(p_);
    Tile tile;
    while (walk.next(tile)) {
      float sum[64] = {};
      multiply(tile, sum);
      if constexpr (kGrowsDepth) {
        hand_over(sum);
      } else {
        store(tile, sum);
      }
    }
  }

 private:
  using Place = Ring<Shared<kGrowsDepth>::kStages>;

  /// Two steps at a time, so that the second one's product begins before the first one's ends. None
  /// is under way when the loop begins anew: the compiler would wait for it.
  __device__ void multiply(const Tile& tile, float (&sum)[64]) {
    const int column = tile.column + block_ * kTile;
    const float* const squares =
        kGrowsDepth || column >= p_.columns
            ? p_.b_scales
            : p_.b_scales + int64_t{(tile.expert * p_.b_rows + column) / kTile} * p_.b_scale_pitch +
                  tile.expert * p_.b_depth / kTile;
    float parts[2][64];
    int step = 0;
    for (; step + 1 < tile.steps; step += 2) {
      const Place first = ring_;
      ring_.advance();
      const Place second = ring_;
      ring_.advance();
      const RowScales first_scales = begin(tile, first, squares, step, parts[0]);
      const RowScales second_scales = begin(tile, second, squares, step + 1, parts[1]);
      ptx::wait_for_products<1>();
      finish(first, first_scales, parts[0], sum);
      ptx::wait_for_products<0>();
      finish(second, second_scales, parts[1], sum);
    }
    if (step < tile.steps) {
      const RowScales scales = begin(tile, ring_, squares, step, parts[0]);
      ptx::wait_for_products<0>();
      finish(ring_, scales, parts[0], sum);
      ring_.advance();
    }
  }

  __device__ RowScales begin(const Tile& tile, const Place& place, const float* squares, int step,
                             float (&part)[64]) {
    const float square = kGrowsDepth ? 1.0f : __ldg(squares + step);
    ptx::wait_for_phase(shared_.full(place.stage), place.parity);
    const uint64_t a =
        ptx::describe_rows_of_128_bytes(shared_.factor(place.stage, 0) + half_ * kFactorBytes / 2);
    const uint64_t b = ptx::describe_rows_of_128_bytes(shared_.factor(place.stage, 1));
    ptx::keep_order(part);
    ptx::begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ptx::multiply_e4m3(part, a + 2 * k, b + 2 * k, k > 0);
    }
    ptx::end_product_group();
    const int row = half_ * kHalf + row_ + tile.row % 4;
    const uint32_t scales = shared_.scales(place.stage, 0) + row * sizeof(float);
    return {ptx::load_shared(scales) * square,
            ptx::load_shared(scales + 8 * sizeof(float)) * square};
  }

  __device__ void finish(const Place& place, RowScales scales, float (&part)[64],
                         float (&sum)[64]) {
    ptx::keep_order(part);
    if constexpr (kGrowsDepth) {
      add_scaled(sum, part, scales, shared_.scales(place.stage, 1) + 8 * (lane_ % 4));
      release(place);
    } else {
      release(place);
      add_scaled(sum, part, scales);
    }
  }

  /// sum += part times the scales of its rows.
  __device__ static void add_scaled(float (&sum)[64], const float (&part)[64], RowScales scales) {
#pragma unroll
    for (int j = 0; j < 64; j += 4) {
      sum[j] = fmaf(part[j], scales.first, sum[j]);
      sum[j + 1] = fmaf(part[j + 1], scales.first, sum[j + 1]);
      sum[j + 2] = fmaf(part[j + 2], scales.second, sum[j + 2]);
      sum[j + 3] = fmaf(part[j + 3], scales.second, sum[j + 3]);
    }
  }

  /// sum += part times the scales of its rows and columns. Powers of two: their product is exact.
  __device__ static void add_scaled(float (&sum)[64], const float (&part)[64], RowScales scales,
                                    uint32_t column_scales) {
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float2 column = ptx::load_shared_pair(column_scales + 32 * j);
      sum[4 * j] = fmaf(part[4 * j], scales.first * column.x, sum[4 * j]);
      sum[4 * j + 1] = fmaf(part[4 * j + 1], scales.first * column.y, sum[4 * j + 1]);
      sum[4 * j + 2] = fmaf(part[4 * j + 2], scales.second * column.x, sum[4 * j + 2]);
      sum[4 * j + 3] = fmaf(part[4 * j + 3], scales.second * column.y, sum[4 * j + 3]);
    }
  }

  /// A warp no longer reads the stage, which both blocks fill.
  __device__ void release(const Place& place) {
    __syncwarp();
    if (lane_ < kCluster) {
      ptx::arrive_at_block(shared_.empty(place.stage), static_cast<uint32_t>(lane_));
    }
  }

  /// Adds to the results so far, which `move_results` then stores.
  __device__ void hand_over(const float (&sum)[64]) {
    ptx::wait_for_phase(shared_.ready(half_), results_parity_);
    results_parity_ ^= 1;
    const uint32_t row = ptx::shared_address(shared_.results(half_)) +
                         static_cast<uint32_t>(row_ * kRowBytes + lane_ % 2 * 8);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int chunk = (j % 4 * 2 + lane_ % 4 / 2) ^ (row_ % 8);
        const uint32_t at = row + j / 4 * kBoxBytes + 8 * i * kRowBytes + chunk * 16;
        float2 value{sum[4 * j + 2 * i], sum[4 * j + 2 * i + 1]};
        if (p_.accumulate) {
          const float2 before = ptx::load_shared_pair(at);
          value.x += before.x;
          value.y += before.y;
        }
        ptx::store_shared_pair(at, value);
      }
    }
    ptx::fence_for_copies();
    ptx::arrive(shared_.made(half_));
  }

  /// Each warp stores the 16 rows that it made, those of the expert, in vectors.
  __device__ void store(const Tile& tile, const float (&sum)[64]) {
    char* const results = shared_.results(half_);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<__nv_bfloat162*>(results + (row_ + 8 * i) * kRowPitch + 16 * j +
                                           4 * (lane_ % 4)) =
            __floats2bfloat162_rn(sum[4 * j + 2 * i], sum[4 * j + 2 * i + 1]);
      }
    }
    __syncwarp();
    const int column = tile.column + block_ * kTile + 8 * (lane_ % 16);
    const int first = row_ - lane_ / 4 + lane_ / 16;
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      const int row = tile.row + half_ * kHalf + first + i;
      if (row < tile.row_end && column < p_.columns) {
        *reinterpret_cast<uint4*>(p_.c + int64_t{row} * p_.columns + column) =
            *reinterpret_cast<const uint4*>(results + (first + i) * kRowPitch + 16 * (lane_ % 16));
      }
    }
    __syncwarp();
  }

  const Problem& p_;
  const Shared<kGrowsDepth> shared_;
  const int block_;
  const int half_;
  const int lane_;
  const int row_;  // of the thread's first elements in its half
  Place ring_;
  uint32_t results_parity_ = 0;
};

template <bool kGrowsDepth>
__device__ void init_barriers(const Shared<kGrowsDepth>& shared) {
  for (int stage = 0; stage < Shared<kGrowsDepth>::kStages; ++stage) {
    ptx::init_barrier(shared.full(stage), 1);
    ptx::init_barrier(shared.empty(stage), kCluster * 2 * kWarpgroup / 32);
  }
  for (int half = 0; half < 2; ++half) {
    ptx::init_barrier(shared.ready(half), 1);
    ptx::init_barrier(shared.made(half), kWarpgroup);
  }
  ptx::publish_barriers();
}

template <bool kGrowsDepth>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char raw[];
  constexpr uintptr_t kAlignment = Shared<kGrowsDepth>::kAlignment;
  const Shared<kGrowsDepth> shared{reinterpret_cast<char*>(
      (reinterpret_cast<uintptr_t>(raw) + kAlignment - 1) & ~(kAlignment - 1))};
  constexpr int kLoader = 2 * kWarpgroup;  // the thread that fills the stages
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(ptx::block_of_cluster());
  if (thread == 0) {
    init_barriers(shared);
  }
  ptx::sync_cluster();
  if (thread >= kLoader) {
    ptx::give_registers<40>();
    if (thread == kLoader) {
      load_factors(maps, p, shared, block);
    } else if (kGrowsDepth && (thread == kLoader + 32 || thread == kLoader + 64)) {
      move_results(maps, p, shared, block, (thread - kLoader) / 32 - 1);
    }
  } else {
    ptx::take_registers<232>();
    Multiplier<kGrowsDepth>(p, shared, block).run();
  }
  ptx::sync_cluster();  // no block ends before the other one's copies to it, and arrivals
#endif
}

// ---- launches

TiledMatrix factor_map(const void* data, int64_t rows, int64_t depth, int64_t box_rows) {
  return {.data = data,
          .dtype = DType::kF8E4M3,
          .rows = rows,
          .columns = depth,
          .box_rows = box_rows,
          .box_columns = kTile,
          .swizzles = true};
}

TiledMatrix scale_map(const float* data, int64_t blocks, int64_t rows, int64_t box) {
  return {.data = data, .rows = blocks, .columns = rows, .box_rows = 1, .box_columns = box};
}

template <bool kGrowsDepth>
void launch(const Maps& maps, const Problem& problem, int multiprocessors, cudaStream_t stream) {
  constexpr int kBytes = Shared<kGrowsDepth>::kBytes + Shared<kGrowsDepth>::kAlignment;
  BRAID_CUDA_CHECK(cudaFuncSetAttribute(product_kernel<kGrowsDepth>,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const auto blocks = static_cast<unsigned>(multiprocessors / kCluster * kCluster);
  product_kernel<kGrowsDepth><<<blocks, kThreads, kBytes, stream>>>(maps, problem);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_scaled_grouped(const ScaledGroupedRows& product, int multiprocessors,
                           cudaStream_t stream) {
  const bool divides_depth = product.experts_divide_depth;
  const int64_t b_rows = product.columns * (divides_depth ? 1 : product.num_experts);
  const int64_t b_depth = product.depth * (divides_depth ? product.num_experts : 1);
  const Maps maps{.a = make_tensor_map(factor_map(product.a, product.rows, product.depth, kHalf)),
                  .b = make_tensor_map(factor_map(product.b, b_rows, b_depth, kTile)),
                  .a_scales = make_tensor_map(
                      scale_map(product.a_scales, product.depth / kTile, product.rows, kTile + 4))};
  launch<false>(maps,
                {.offsets = product.offsets,
                 .num_experts = static_cast<int>(product.num_experts),
                 .columns = static_cast<int>(product.columns),
                 .depth = static_cast<int>(product.depth),
                 .b_rows = static_cast<int>(divides_depth ? 0 : product.columns),
                 .b_depth = static_cast<int>(divides_depth ? product.depth : 0),
                 .b_scales = product.b_scales,
                 .b_scale_pitch = static_cast<int>(ceil_div(b_depth / kTile, 4) * 4),
                 .c = product.c},
                multiprocessors, stream);
}

void launch_scaled_grouped(const ScaledGroupedColumns& product, int multiprocessors,
                           cudaStream_t stream) {
  const int64_t blocks = product.width / kTile;
  const Maps maps{
      .a = make_tensor_map(factor_map(product.a, product.rows, product.width, kHalf)),
      .b = make_tensor_map(factor_map(product.b, product.columns, product.width, kTile)),
      .a_scales = make_tensor_map(scale_map(product.a_scales, blocks, product.rows, kTile)),
      .b_scales = make_tensor_map(scale_map(product.b_scales, blocks, product.columns, kTile)),
      .c = make_tensor_map({.data = product.c,
                            .rows = product.num_experts * product.rows,
                            .columns = product.columns,
                            .box_rows = kHalf,
                            .box_columns = kBoxColumns,
                            .swizzles = true})};
  launch<true>(maps,
               {.offsets = product.offsets,
                .num_experts = static_cast<int>(product.num_experts),
                .rows = static_cast<int>(product.rows),
                .columns = static_cast<int>(product.columns),
                .accumulate = product.accumulate},
               multiprocessors, stream);
}

}  // namespace braid
