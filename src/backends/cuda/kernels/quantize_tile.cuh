#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/fp8_tally.cuh"
#include "backends/cuda/kernels/ptx.cuh"
#include "backends/cuda/kernels/quantize_sources.cuh"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "base/float8.h"

// A block of threads owns a tile of 128 x 128 elements: all blocks of either direction that touch
// it are complete in it, so x is read, or made by its source, once for both copies. The tile lies
// in shared memory, so that few registers are needed and many tiles are under way on a
// multiprocessor: while some wait for their elements, others convert. Each thread brings, and later
// rounds for the copy by rows, 16 bytes of eight rows; the largest magnitudes of rows come from
// shuffles. Chunks of 16 bytes have the index of their 16 rows XORed into their place, so that
// reads along a column have no bank conflicts.
namespace braid::quantize_tile {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;
inline constexpr int kTile = static_cast<int>(kQuantizeTile);
inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kChunks = kTile / kVector;      // of a row
inline constexpr int kRowStep = kThreads / kChunks;  // rows that are loaded at once
inline constexpr int kRowsPerThread = kTile / kRowStep;
inline constexpr int kColumnRows = 16;  // of a column that a thread converts
inline constexpr int kRowGroups = kTile / kColumnRows;
static_assert(kRowStep == kColumnRows, "the row of a load determines its XORed index");

inline constexpr int kSmallSquare = 32;  // rows and columns of kSquares32
inline constexpr int kSquaresOfRow = kTile / kSmallSquare;

enum class Blocks { kAll, kRuns32, kRuns128, kSquares32, kSquares };

/// One of the copies of x; no data: not written.
struct CopyArgs {
  uint8_t* data = nullptr;
  void* scales = nullptr;
  __nv_fp8_interpretation_t format = __NV_E4M3;
};

struct QuantizeArgs {
  int64_t rows = 0;  // of x
  int64_t columns = 0;
  CopyArgs row;                          // [rows, columns]
  CopyArgs column;                       // [columns, rows]
  const uint32_t* magnitudes = nullptr;  // [kQuantizeMagnitudes], kAll only
  float* sums = nullptr;                 // [tiles of rows, columns], null: not wanted
  unsigned long long* tally = nullptr;   // [Fp8Tally::kSize], if the kernel counts

  __device__ int64_t num_rounded() const {
    const int copies = (row.data != nullptr ? 1 : 0) + (column.data != nullptr ? 1 : 0);
    return copies * rows * columns;
  }

  // What other arguments of the functions below may say otherwise (quantize_grouped.cu).
  static constexpr bool kPadsColumns = false;               // the copy by columns ends with zeros
  __device__ int64_t column_rows() const { return rows; }   // of the copy by columns, with them
  __device__ int64_t column_pitch() const { return rows; }  // elements between its columns
  __device__ int64_t scale_pitch() const { return rows; }   // between runs of the copy by rows
};

// ---- bf16 elements in pairs

__device__ inline uint32_t magnitudes_of(uint32_t pair) {
  return pair & 0x7FFF7FFFu;
}
__device__ inline uint32_t larger_of_pairs(uint32_t a, uint32_t b) {
  return __vmaxu2(a, b);
}
/// The larger magnitude of the pair, as bits of a float.
__device__ inline uint32_t larger_bits(uint32_t pair) {
  return max(pair << 16, pair & 0xFFFF0000u);
}
__device__ inline float low_of(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high_of(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

/// Over groups of kLanes adjacent lanes.
template <int kLanes>
__device__ uint32_t lanes_max(uint32_t pair) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    pair = larger_of_pairs(pair, __shfl_xor_sync(kAllLanes, pair, mask));
  }
  return pair;
}

/// Over all threads.
__device__ inline uint32_t block_max(uint32_t value, uint32_t* shared) {
  value = __reduce_max_sync(kAllLanes, value);
  if (threadIdx.x % 32 == 0) {
    shared[threadIdx.x / 32] = value;
  }
  __syncthreads();
  const unsigned num_warps = blockDim.x / 32;
  return __reduce_max_sync(kAllLanes, threadIdx.x % 32 < num_warps ? shared[threadIdx.x % 32] : 0u);
}

// ---- scales

__device__ inline int exponent_of(uint32_t magnitude_bits, __nv_fp8_interpretation_t format) {
  return Fp8Scale::exponent_of(magnitude_bits, format == __NV_E5M2 ? 15 : 8);
}

/// What elements are multiplied by. NaN if the block is not finite: conversion makes it 0x7F.
__device__ inline float factor_of(int exponent) {
  return __uint_as_float(
      Fp8Scale::float_bits(exponent == Fp8Scale::kNotFinite ? exponent : -exponent));
}

template <Blocks kBlocks>
__device__ void store_scale(void* scales, int64_t at, int exponent) {
  if constexpr (kBlocks == Blocks::kRuns32 || kBlocks == Blocks::kSquares32) {
    static_cast<uint8_t*>(scales)[at] = Fp8Scale::to_e8m0(exponent);
  } else {
    static_cast<float*>(scales)[at] = __uint_as_float(Fp8Scale::float_bits(exponent));
  }
}

/// Tile [i, k] of a copy; `num_k` tiles lie along its last dimension. The last one writes the
/// padding too.
__device__ inline void store_square_scale(void* scales, int64_t i, int64_t k, int64_t num_k,
                                          int exponent) {
  const int64_t padded = (num_k + 3) / 4 * 4;
  float* const row = static_cast<float*>(scales) + i * padded;
  row[k] = __uint_as_float(Fp8Scale::float_bits(exponent));
  if (k == num_k - 1) {
    for (int64_t pad = num_k; pad < padded; ++pad) {
      row[pad] = 0.0f;
    }
  }
}

__device__ inline uint32_t converted(float first, float second, __nv_fp8_interpretation_t format) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, format);
}

__device__ inline float largest_of(__nv_fp8_interpretation_t format) {
  return format == __NV_E5M2 ? 57344.0f : 448.0f;
}

/// Two adjacent elements.
template <bool kWatch>
__device__ uint32_t rounded(float first, float second, float factor,
                            __nv_fp8_interpretation_t format, Fp8Counter<kWatch>& losses) {
  const uint32_t both = converted(first * factor, second * factor, format);
  losses.add(first, first * factor, both, largest_of(format));
  losses.add(second, second * factor, both >> 8, largest_of(format));
  return both;
}

// ---- a tile

struct TilePlace {
  int64_t row = 0;  // of tiles
  int64_t column = 0;
  int64_t num_rows = 0;
  int64_t num_columns = 0;
};

__device__ inline int chunk_of_thread() {
  return static_cast<int>(threadIdx.x) % kChunks;
}
__device__ inline int row_of_thread(int i) {
  return static_cast<int>(threadIdx.x) / kChunks + i * kRowStep;
}

/// Elements of x from the thread's chunk of its i-th row on; not positive outside of x.
template <class Args>
__device__ int64_t valid_elems(const Args& args, const TilePlace& place, int i) {
  const bool is_row = place.row * kTile + row_of_thread(i) < args.rows;
  return is_row ? args.columns - place.column * kTile - chunk_of_thread() * kVector : 0;
}
template <class Args>
__device__ int64_t elem_of_thread(const Args& args, const TilePlace& place, int i) {
  return (place.row * kTile + row_of_thread(i)) * args.columns + place.column * kTile +
         chunk_of_thread() * kVector;
}

/// The place in the tile of the thread's chunk of its i-th row. The first four words of a chunk are
/// four pairs of elements; outside of x they are zero.
__device__ inline int own_chunk(int i) {
  return row_of_thread(i) * kChunks + (chunk_of_thread() ^ i);
}

__device__ inline uint32_t max_of_chunk(const uint4& chunk) {
  return larger_of_pairs(larger_of_pairs(magnitudes_of(chunk.x), magnitudes_of(chunk.y)),
                         larger_of_pairs(magnitudes_of(chunk.z), magnitudes_of(chunk.w)));
}

/// Of the thread's chunks.
__device__ inline uint32_t max_of_own(const uint4* tile) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    most = larger_of_pairs(most, max_of_chunk(tile[own_chunk(i)]));
  }
  return most;
}

/// Brings the thread's chunks of a stored matrix; those outside of it are zero. They are there
/// after ptx::wait_for_copies.
template <class Args>
__device__ void copy_tile(const Bf16* from, const Args& args, const TilePlace& place, uint4* tile) {
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const bool is_valid = valid_elems(args, place, i) > 0;
    const int64_t at = is_valid ? elem_of_thread(args, place, i) : 0;
    ptx::copy_16_async(tile + own_chunk(i), from + at, is_valid);
  }
  ptx::end_copy_group();
}

/// The thread's chunks of what a source makes of its inputs.
template <bool kAligned, class Source>
__device__ void fill_loaded(const Source& source, const QuantizeArgs& args, const TilePlace& place,
                            uint4* tile) {
#pragma unroll 1
  for (int begin = 0; begin < kRowsPerThread; begin += Source::kLoadsInFlight) {
    typename Source::Inputs inputs[Source::kLoadsInFlight];
#pragma unroll
    for (int i = 0; i < Source::kLoadsInFlight; ++i) {
      const int64_t valid = valid_elems(args, place, begin + i);
      if (valid > 0) {
        inputs[i] = source.template load<kAligned>(elem_of_thread(args, place, begin + i), valid);
      }
    }
#pragma unroll
    for (int i = 0; i < Source::kLoadsInFlight; ++i) {
      const int64_t valid = valid_elems(args, place, begin + i);
      tile[own_chunk(begin + i)] =
          valid > 0 ? first_elems<kAligned>(source.result(inputs[i]), valid) : uint4{};
    }
  }
}

/// The thread's chunks of a source with a Row. The copies of x pass while it loads what else it
/// needs.
template <bool kAligned, class Source>
__device__ void fill_normed(const Source& source, const QuantizeArgs& args, const TilePlace& place,
                            uint4* tile) {
  const int64_t column = place.column * kTile + chunk_of_thread() * kVector;
  if (column >= args.columns) {
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      tile[own_chunk(i)] = uint4{};
    }
    return;
  }
  if constexpr (kAligned) {
    copy_tile(source.a, args, place, tile);
  }
  const auto columns = source.template columns<kAligned>(column, args.columns - column);
  typename Source::Row rows[kRowsPerThread];
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const int64_t row = place.row * kTile + row_of_thread(i);
    rows[i] = source.row(min(row, args.rows - 1));
  }
  if constexpr (kAligned) {
    ptx::wait_for_copies<0>();
  }
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    uint4& chunk = tile[own_chunk(i)];
    const int64_t valid = valid_elems(args, place, i);
    if (valid <= 0) {
      chunk = uint4{};
      continue;
    }
    DeviceVector<Bf16, kVector> x;
    if constexpr (kAligned) {
      memcpy(x.elems, &chunk, sizeof(x));
    } else {
      x = load_vector<kVector, kAligned>(source.a + elem_of_thread(args, place, i), valid);
    }
    chunk = first_elems<kAligned>(source.result(x, rows[i], columns), valid);
  }
}

/// Each thread fills its chunks, and may read them afterwards without a barrier.
template <bool kAligned, class Source>
__device__ void fill_tile(const Source& source, const QuantizeArgs& args, const TilePlace& place,
                          uint4* tile) {
  if constexpr (kAligned && Source::kIsStored) {
    copy_tile(source.a, args, place, tile);
    ptx::wait_for_copies<0>();
  } else if constexpr (requires { typename Source::Row; }) {
    fill_normed<kAligned>(source, args, place, tile);
  } else {
    fill_loaded<kAligned>(source, args, place, tile);
  }
}

/// Of the whole tile or, kAll, of x.
template <Blocks kBlocks>
__device__ uint32_t common_magnitude(const QuantizeArgs& args, const uint4* tile,
                                     uint32_t* shared) {
  if constexpr (kBlocks == Blocks::kAll) {
    static_assert(kQuantizeMagnitudes == kThreads);
    return block_max(args.magnitudes[threadIdx.x], shared);
  } else if constexpr (kBlocks == Blocks::kSquares) {
    return block_max(larger_bits(max_of_own(tile)), shared);
  } else {
    return 0;
  }
}

template <Blocks kBlocks>
__device__ void store_common_scales(const QuantizeArgs& args, const TilePlace& place,
                                    uint32_t magnitude) {
  if (threadIdx.x != 0) {
    return;
  }
  const auto store = [&](const CopyArgs& copy, int64_t i, int64_t k, int64_t num_k) {
    if (copy.data == nullptr) {
      return;
    }
    const int exponent = exponent_of(magnitude, copy.format);
    if constexpr (kBlocks == Blocks::kSquares) {
      store_square_scale(copy.scales, i, k, num_k, exponent);
    } else if (i == 0 && k == 0) {
      store_scale<kBlocks>(copy.scales, 0, exponent);
    }
  };
  store(args.row, place.row, place.column, place.num_columns);
  store(args.column, place.column, place.row, place.num_rows);
}

template <Blocks kBlocks>
inline constexpr int kRun = kBlocks == Blocks::kRuns32 || kBlocks == Blocks::kSquares32 ? 32 : 128;
template <Blocks kBlocks>
inline constexpr bool kHasRuns = kBlocks == Blocks::kRuns32 || kBlocks == Blocks::kRuns128;
/// Each run of a row stores a scale; those of the rows of a square are equal.
template <Blocks kBlocks>
inline constexpr bool kStoresRuns = kHasRuns<kBlocks> || kBlocks == Blocks::kSquares32;

/// The largest magnitudes of the squares of 32 x 32, those of 32 rows one after the other. All
/// threads may read them, and the tile, afterwards.
__device__ inline void find_squares(const uint4* tile, uint32_t* squares) {
  if (threadIdx.x < kSquaresOfRow * kSquaresOfRow) {
    squares[threadIdx.x] = 0;
  }
  __syncthreads();
  constexpr int kLanes = kSmallSquare / kVector;
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const uint32_t bits = larger_bits(lanes_max<kLanes>(max_of_chunk(tile[own_chunk(i)])));
    if (chunk_of_thread() % kLanes == 0) {
      atomicMax(
          squares + row_of_thread(i) / kSmallSquare * kSquaresOfRow + chunk_of_thread() / kLanes,
          bits);
    }
  }
  __syncthreads();
}

/// Of the blocks of the tile that are no runs.
struct Magnitudes {
  uint32_t common = 0;                // kAll, kSquares
  const uint32_t* squares = nullptr;  // kSquares32

  /// `row` and `column`: of the tile.
  template <Blocks kBlocks>
  __device__ uint32_t at(int row, int column) const {
    if constexpr (kBlocks == Blocks::kSquares32) {
      return squares[row / kSmallSquare * kSquaresOfRow + column / kSmallSquare];
    } else {
      return common;
    }
  }
};

template <Blocks kBlocks, bool kAligned, bool kWatch, class Args>
__device__ void write_rows(const Args& args, const TilePlace& place, const uint4* tile,
                           const Magnitudes& magnitudes, Fp8Counter<kWatch>& losses) {
  constexpr int kLanes = kRun<kBlocks> / kVector;  // of a run
  const CopyArgs& copy = args.row;
#pragma unroll 2
  for (int i = 0; i < kRowsPerThread; ++i) {
    const uint4 chunk = tile[own_chunk(i)];
    const uint32_t pairs[kVector / 2] = {chunk.x, chunk.y, chunk.z, chunk.w};
    const uint32_t bits = kHasRuns<kBlocks> ? larger_bits(lanes_max<kLanes>(max_of_chunk(chunk)))
                                            : magnitudes.template at<kBlocks>(
                                                  row_of_thread(i), chunk_of_thread() * kVector);
    const int64_t valid = valid_elems(args, place, i);
    if (valid <= 0) {
      continue;  // after the shuffles, in which all lanes take part
    }
    const int exponent = exponent_of(bits, copy.format);
    if (kStoresRuns<kBlocks> && chunk_of_thread() % kLanes == 0) {
      const int64_t run = place.column * (kTile / kRun<kBlocks>)+chunk_of_thread() / kLanes;
      store_scale<kBlocks>(
          copy.scales, run * args.scale_pitch() + place.row * kTile + row_of_thread(i), exponent);
    }
    const float factor = factor_of(exponent);
    uint32_t words[kVector / 4];
#pragma unroll
    for (int word = 0; word < kVector / 4; ++word) {
      const uint32_t first = pairs[2 * word];
      const uint32_t second = pairs[2 * word + 1];
      words[word] = rounded(low_of(first), high_of(first), factor, copy.format, losses) |
                    rounded(low_of(second), high_of(second), factor, copy.format, losses) << 16;
    }
    DeviceVector<uint8_t, kVector> vector;
    memcpy(vector.elems, words, sizeof(vector));
    store_vector<kAligned>(copy.data + elem_of_thread(args, place, i), vector, valid);
  }
}

/// Sixteen rows of two adjacent columns. Eight adjacent lanes have all rows of the tile.
struct ColumnPair {
  int group = 0;   // of rows
  int column = 0;  // of the tile, even
  uint32_t pairs[kColumnRows];

  __device__ ColumnPair(const uint4* tile, int step)
      : group(static_cast<int>(threadIdx.x) % kRowGroups) {
    const int chunk = static_cast<int>(threadIdx.x) / 32 + step * kWarps;
    const int pair = static_cast<int>(threadIdx.x) % 32 / kRowGroups;
    column = chunk * kVector + 2 * pair;
    const auto* const words = reinterpret_cast<const uint32_t*>(tile);
#pragma unroll
    for (int j = 0; j < kColumnRows; ++j) {
      const int place = (group * kColumnRows + j) * kChunks + (chunk ^ group);
      pairs[j] = words[place * 4 + pair];
    }
  }

  __device__ uint32_t max_of_columns() const {
    uint32_t most = 0;
#pragma unroll
    for (const uint32_t pair : pairs) {
      most = larger_of_pairs(most, magnitudes_of(pair));
    }
    return most;
  }
  __device__ float elem(int j, bool second) const {
    return second ? high_of(pairs[j]) : low_of(pairs[j]);
  }
};

/// Sums of the tile's columns, in the order of its rows and then in that of a tree.
__device__ inline void store_sums(const QuantizeArgs& args, const TilePlace& place,
                                  const ColumnPair& elems) {
#pragma unroll
  for (int second = 0; second < 2; ++second) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kColumnRows; ++j) {
      sum += elems.elem(j, second != 0);
    }
#pragma unroll
    for (int mask = kRowGroups / 2; mask > 0; mask /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, mask);
    }
    const int64_t column = place.column * kTile + elems.column + second;
    if (elems.group == 0 && column < args.columns) {
      args.sums[place.row * args.columns + column] = sum;
    }
  }
}

/// Zeros behind the first `count` bytes.
__device__ inline void keep_first_bytes(uint32_t (&words)[kColumnRows / 4], int64_t count) {
#pragma unroll
  for (int word = 0; word < kColumnRows / 4; ++word) {
    const int64_t kept = count - 4 * word;
    words[word] &= kept >= 4 ? 0xFFFFFFFFu : kept <= 0 ? 0u : (1u << (8 * kept)) - 1;
  }
}

template <Blocks kBlocks, bool kAligned, bool kWatch, class Args>
__device__ void write_columns(const Args& args, const TilePlace& place, const ColumnPair& elems,
                              const Magnitudes& magnitudes, Fp8Counter<kWatch>& losses) {
  constexpr int kLanes = kRun<kBlocks> / kColumnRows;  // of a run
  const CopyArgs& copy = args.column;
  const uint32_t most = kHasRuns<kBlocks> ? lanes_max<kLanes>(elems.max_of_columns()) : uint32_t{0};
  const int64_t first_row = place.row * kTile + elems.group * kColumnRows;
#pragma unroll
  for (int second = 0; second < 2; ++second) {
    const int64_t column = place.column * kTile + elems.column + second;
    if (column >= args.columns || first_row >= args.column_rows()) {
      continue;
    }
    const uint32_t own = kHasRuns<kBlocks> ? second != 0 ? most & 0xFFFF0000u : most << 16
                                           : magnitudes.template at<kBlocks>(
                                                 elems.group * kColumnRows, elems.column + second);
    const int exponent = exponent_of(own, copy.format);
    if (kStoresRuns<kBlocks> && elems.group % kLanes == 0) {
      store_scale<kBlocks>(copy.scales, first_row / kRun<kBlocks> * args.columns + column,
                           exponent);
    }
    const float factor = factor_of(exponent);
    uint32_t words[kColumnRows / 4];
#pragma unroll
    for (int word = 0; word < kColumnRows / 4; ++word) {
      const auto elem = [&](int j) { return elems.elem(4 * word + j, second != 0); };
      words[word] = rounded(elem(0), elem(1), factor, copy.format, losses) |
                    rounded(elem(2), elem(3), factor, copy.format, losses) << 16;
    }
    if constexpr (Args::kPadsColumns) {
      keep_first_bytes(words, args.rows - first_row);  // NaN times zero is not zero
    }
    DeviceVector<uint8_t, kColumnRows> vector;
    memcpy(vector.elems, words, sizeof(vector));
    store_vector<kAligned>(copy.data + column * args.column_pitch() + first_row, vector,
                           args.column_rows() - first_row);
  }
}

template <Blocks kBlocks, bool kAligned, bool kWatch, class Source>
__global__ void __launch_bounds__(kThreads, Source::kTilesAtOnce)
    quantize_kernel(Source source, QuantizeArgs args) {
  __shared__ uint4 tile[kTile * kChunks];
  __shared__ uint32_t maxima[kWarps];
  const int64_t num_columns = (args.columns + kTile - 1) / kTile;
  // From the last tile to the first: what was written or read last is still in the cache. Kernels
  // that make x, or find its magnitude, go from the first row to the last.
  const int64_t tile_index = int64_t{gridDim.x} - 1 - blockIdx.x;
  const TilePlace place{.row = tile_index / num_columns,
                        .column = tile_index % num_columns,
                        .num_rows = (args.rows + kTile - 1) / kTile,
                        .num_columns = num_columns};
  fill_tile<kAligned>(source, args, place, tile);
  __shared__ uint32_t squares[kSquaresOfRow * kSquaresOfRow];
  if constexpr (kBlocks == Blocks::kSquares32) {
    find_squares(tile, squares);
  }
  const Magnitudes magnitudes{.common = common_magnitude<kBlocks>(args, tile, maxima),
                              .squares = squares};
  if constexpr (!kStoresRuns<kBlocks>) {
    store_common_scales<kBlocks>(args, place, magnitudes.common);
  }
  Fp8Counter<kWatch> losses;
  if constexpr (kWatch) {
    losses.largest = larger_bits(max_of_own(tile));
  }
  if (args.row.data != nullptr) {
    write_rows<kBlocks, kAligned>(args, place, tile, magnitudes, losses);
  }
  if (args.column.data != nullptr || args.sums != nullptr) {
    __syncthreads();
    for (int step = 0; step < kChunks / kWarps; ++step) {
      const ColumnPair elems(tile, step);
      if (args.sums != nullptr) {
        store_sums(args, place, elems);
      }
      if (args.column.data != nullptr) {
        write_columns<kBlocks, kAligned>(args, place, elems, magnitudes, losses);
      }
    }
  }
  losses.add_to(args.tally, maxima, args.num_rounded());
}

}  // namespace braid::quantize_tile
