// A block is four warps. In the forward and for d_query each warp has 16 of the block's 64 queries,
// for d_key and d_value 16 of its 64 keys. The other side passes through shared memory, tile by
// tile. Heads whose size is no tile size are padded with zeros there.
#include "backends/cuda/kernels/attention_documents.h"

#include <cuda_bf16.h>

#include <cmath>
#include <limits>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/warp_tiles.cuh"
#include "base/errors.h"

namespace braid {
namespace {

using Elem = __nv_bfloat16;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kWarpRows = 16;
constexpr int kBlockRows = kWarps * kWarpRows;  // queries of a block, or its keys
constexpr int kKeyTile = 64;
constexpr int kQueryTile = 32;  // of the kernel for keys: fewer registers
constexpr int kVector = 8;      // elements of 16 bytes
constexpr float kLog2e = 1.44269504f;

/// Rows of one head, `row` elements apart.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t row = 0;
  __device__ T* at(int64_t index) const { return data + index * row; }
};

struct Tensor {
  std::byte* data = nullptr;
  HeadRows rows;

  template <class T>
  __device__ Rows<T> head(int batch, int head, int64_t head_stride) const {
    return {reinterpret_cast<T*>(data) + batch * rows.sequence + head * head_stride, rows.row};
  }
};

struct Args {
  Tensor q, k, v, out, d_out, d_q, d_k, d_v;
  float* lse = nullptr;
  HeadRows lse_rows;                // row: from a head to the next
  float* means = nullptr;           // [batches, heads, queries]: sums of out * d_out over a head
  const int32_t* starts = nullptr;  // null: a sequence is one document
  int64_t starts_sequence = 0;
  int64_t window = 0;  // keys that a query sees; 0: no limit
  TokenPositions query_positions;
  int64_t query_begin = 0;
  TokenPositions key_positions;
  int kv_sequence = 0;
  int key_begin = 0;
  int heads = 0;
  int group = 1;  // query heads of a key/value head
  int head_size = 0;
  int queries = 0;
  int keys = 0;
  bool causal = false;
  float scale = 1;

  __device__ float* lse_of(int batch, int head) const {
    return lse + batch * lse_rows.sequence + head * lse_rows.row;
  }
  __device__ float* means_of(int batch, int head) const {
    return means + (int64_t{batch} * heads + head) * queries;
  }
  /// The first position that a query sees; negative ones are as good as 0.
  __device__ int64_t first_position(int batch, int query) const {
    int64_t first = 0;
    if (starts != nullptr) {
      first = starts[batch * starts_sequence + query];
    }
    if (window > 0) {
      const int64_t token = query_begin + query;
      const int64_t position = token < query_positions.split
                                   ? query_positions.first_begin + token
                                   : query_positions.second_begin + token - query_positions.split;
      first = max(first, position - window + 1);
    }
    return first;
  }
  /// Query i sees the keys [first_key, end_key). Neither descends with i.
  __device__ int first_key(int batch, int query) const {
    const int64_t start = first_position(batch, min(query, queries - 1));
    const auto of_run = [start](int64_t begin, int64_t count) {
      return max(int64_t{0}, min(start - begin, count));
    };
    const int64_t before = of_run(key_positions.first_begin, key_positions.split) +
                           of_run(key_positions.second_begin, kv_sequence - key_positions.split);
    return static_cast<int>(max(int64_t{0}, before - key_begin));
  }
  __device__ int end_key(int query) const {
    return causal ? min(query + keys - queries + 1, keys) : keys;
  }
};

/// Rows of a head in shared memory.
template <int kRows, int kHeadSize>
struct Tile {
  static constexpr int kStride = kHeadSize + kRowPadding;
  __align__(16) Elem elems[kRows * kStride];

  __device__ const Elem* at(int row, int column) const { return elems + row * kStride + column; }

  /// Rows [begin, begin + kRows) of `count`, the others and padding columns as zeros.
  __device__ void start_load(const Rows<const Elem>& from, int begin, int count, int head_size) {
    constexpr int kVectors = kHeadSize / kVector;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kVectors; i += kThreads) {
      const int row = i / kVectors;
      const int column = i % kVectors * kVector;
      const bool valid = begin + row < count && column < head_size;
      ptx::copy_16_async(elems + row * kStride + column,
                         valid ? from.at(begin + row) + column : from.data, valid);
    }
  }
};

/// sums [16, 8 * kTiles] += left [16, kDepth] right^T; the rows of `right` are columns of the sums.
template <int kDepth, int kTiles, int kStride>
__device__ void multiply_rows(SumTile (&sums)[kTiles], const Elem* left, const Elem* right) {
#pragma unroll
  for (int depth = 0; depth < kDepth; depth += 16) {
    LeftTile factor;
    load_left(factor, left + depth, kStride);
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 2) {
      add_products(sums[tile], sums[tile + 1], factor,
                   load_right(right + tile * 8 * kStride + depth, kStride));
    }
  }
}

/// sums [16, 8 * kTiles] += weights [16, 8 * kDepthTiles], rounded, times the rows at `right`.
template <int kDepthTiles, int kTiles, int kStride>
__device__ void multiply_weights(SumTile (&sums)[kTiles], const SumTile (&weights)[kDepthTiles],
                                 const Elem* right) {
#pragma unroll
  for (int depth = 0; depth < kDepthTiles; depth += 2) {
    LeftTile factor;
    to_left(factor, weights[depth], weights[depth + 1]);
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 2) {
      add_products(sums[tile], sums[tile + 1], factor,
                   load_right_transposed(right + depth * 8 * kStride + tile * 8, kStride));
    }
  }
}

template <int kTiles>
__device__ void clear(SumTile (&sums)[kTiles]) {
#pragma unroll
  for (auto& tile : sums) {
#pragma unroll
    for (float& sum : tile) {
      sum = 0;
    }
  }
}

__device__ float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

/// The two rows of sums that a lane has.
struct LaneQueries {
  int query[2];
  int first[2];  // keys that they see
  int end[2];

  __device__ LaneQueries(const Args& args, int batch, int begin) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      query[half] = begin + sum_row(half);
      first[half] = args.first_key(batch, query[half]);
      end[half] = args.end_key(query[half]);
    }
  }
  __device__ bool sees(int half, int key) const {
    return first[half] <= key && key < end[half];
  }
};

/// The keys that a block of queries sees: some of [begin, end), in tiles.
struct KeyRange {
  int begin;
  int end;

  __device__ KeyRange(const Args& args, int batch, int query)
      : begin(args.first_key(batch, query) / kKeyTile * kKeyTile),
        end(args.end_key(min(query + kBlockRows, args.queries) - 1)) {}
};

// ---- forward

template <int kHeadSize>
struct ForwardShared {
  Tile<kBlockRows, kHeadSize> q;
  Tile<kKeyTile, kHeadSize> k;
  Tile<kKeyTile, kHeadSize> v;
};

/// Softmax of the two rows of a lane over the keys so far.
struct RowSoftmax {
  float largest[2] = {-INFINITY, -INFINITY};  // of the scores, in units of log 2
  float total[2] = {0, 0};                    // of this lane's columns

  /// Replaces scores by weights, and scales the sums of earlier keys.
  template <int kTiles, int kSums>
  __device__ void add(SumTile (&scores)[kTiles], SumTile (&sums)[kSums], const LaneQueries& rows,
                      int key, float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = -INFINITY;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores[tile][2 * half + e];
          score = rows.sees(half, key + 8 * tile + sum_column() + e) ? score * scale : -INFINITY;
          most = fmaxf(most, score);
        }
      }
      const float before = largest[half];
      largest[half] = fmaxf(before, row_max(most));
      const float base = largest[half] == -INFINITY ? 0.0f : largest[half];  // no key yet
      const float factor = ptx::exp2_approx(before - base);
      float added = 0;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores[tile][2 * half + e];
          score = ptx::exp2_approx(score - base);
          added += score;
        }
      }
      total[half] = total[half] * factor + added;
#pragma unroll
      for (int tile = 0; tile < kSums; ++tile) {
        sums[tile][2 * half] *= factor;
        sums[tile][2 * half + 1] *= factor;
      }
    }
  }
};

/// Writes a row of out and its lse, or merges it into both.
template <bool kMerges, int kTiles>
__device__ void write_row(const Args& args, const SumTile (&sums)[kTiles], int half, int query,
                          float largest, float total, int batch, int head) {
  float* const lse = args.lse_of(batch, head) + query;
  const float found = largest / kLog2e + logf(total);
  float old_factor = 0;
  float factor = 1 / total;
  float merged = found;
  if (kMerges) {
    const float before = *lse;
    const float larger = fmaxf(found, before);
    const float old_weight = expf(before - larger);
    const float weight = expf(found - larger);
    old_factor = old_weight / (old_weight + weight);
    factor *= weight / (old_weight + weight);
    merged = larger + logf(old_weight + weight);
  }
  __syncwarp(0xfu << (lane_index() / 4 * 4));  // the four lanes of a row have read lse
  if (lane_index() % 4 == 0) {
    *lse = merged;
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int column = 8 * tile + sum_column();
    if (column >= args.head_size) {
      break;
    }
    const float low = sums[tile][2 * half] * factor;
    const float high = sums[tile][2 * half + 1] * factor;
    if (kMerges) {
      float* const to = args.out.head<float>(batch, head, args.head_size).at(query) + column;
      to[0] = to[0] * old_factor + low;
      to[1] = to[1] * old_factor + high;
    } else {
      Elem* const to = args.out.head<Elem>(batch, head, args.head_size).at(query) + column;
      *reinterpret_cast<uint32_t*>(to) = pack_bf16(low, high);
    }
  }
}

/// Grid: tiles of queries, heads, batches. The copy of the next keys runs under the second product,
/// that of the next values under the first one.
template <int kHeadSize, bool kMerges>
__global__ void __launch_bounds__(kThreads) attend(const __grid_constant__ Args args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<kHeadSize>*>(memory);
  constexpr int kStride = Tile<kKeyTile, kHeadSize>::kStride;
  const int batch = static_cast<int>(blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  const int first_query = static_cast<int>(blockIdx.x) * kBlockRows;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpSize * kWarpRows;
  const int size = args.head_size;
  const auto k = args.k.head<const Elem>(batch, head / args.group, size);
  const auto v = args.v.head<const Elem>(batch, head / args.group, size);
  const LaneQueries rows(args, batch, first_query + warp_row);
  const KeyRange range(args, batch, first_query);

  shared.q.start_load(args.q.head<const Elem>(batch, head, size), first_query, args.queries, size);
  shared.k.start_load(k, range.begin, args.keys, size);
  ptx::end_copy_group();
  shared.v.start_load(v, range.begin, args.keys, size);
  ptx::end_copy_group();

  SumTile sums[kHeadSize / 8];
  clear(sums);
  RowSoftmax softmax;
  for (int key = range.begin; key < range.end; key += kKeyTile) {
    ptx::wait_for_copies<1>();
    __syncthreads();
    SumTile scores[kKeyTile / 8];
    clear(scores);
    multiply_rows<kHeadSize, kKeyTile / 8, kStride>(scores, shared.q.at(warp_row, 0),
                                                    shared.k.elems);
    __syncthreads();
    if (key + kKeyTile < range.end) {
      shared.k.start_load(k, key + kKeyTile, args.keys, size);
    }
    ptx::end_copy_group();
    softmax.add(scores, sums, rows, key, args.scale * kLog2e);
    ptx::wait_for_copies<1>();
    __syncthreads();
    multiply_weights<kKeyTile / 8, kHeadSize / 8, kStride>(sums, scores, shared.v.elems);
    __syncthreads();
    if (key + kKeyTile < range.end) {
      shared.v.start_load(v, key + kKeyTile, args.keys, size);
    }
    ptx::end_copy_group();
  }
  ptx::wait_for_copies<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = row_sum(softmax.total[half]);
    if (rows.query[half] < args.queries && total > 0) {
      write_row<kMerges>(args, sums, half, rows.query[half], softmax.largest[half], total, batch,
                         head);
    }
  }
}

// ---- backward

/// A warp per row of a head. Grid: queries / kWarps, heads, batches.
__global__ void __launch_bounds__(kThreads) add_up_means(const __grid_constant__ Args args) {
  const int query = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarpSize);
  const int head = static_cast<int>(blockIdx.y);
  const int batch = static_cast<int>(blockIdx.z);
  if (query >= args.queries) {
    return;
  }
  const Elem* const out = args.out.head<const Elem>(batch, head, args.head_size).at(query);
  const Elem* const d_out = args.d_out.head<const Elem>(batch, head, args.head_size).at(query);
  float sum = 0;
  for (int i = 2 * lane_index(); i < args.head_size; i += 2 * kWarpSize) {
    const float2 a = load_pair(out + i);
    const float2 b = load_pair(d_out + i);
    sum += a.x * b.x + a.y * b.y;
  }
  sum = warp_sum(sum);
  if (lane_index() == 0) {
    args.means_of(batch, head)[query] = sum;
  }
}

/// Writes sums of `kTiles` tiles times `factor` to columns from `begin` on, or adds them.
template <bool kAdds, int kTiles>
__device__ void write_sums(const Args& args, const Tensor& tensor, const SumTile (&sums)[kTiles],
                           float factor, int batch, int head, int first_row, int count, int begin) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + sum_row(half);
    if (row >= count) {
      continue;
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int column = begin + 8 * tile + sum_column();
      if (column >= args.head_size) {
        break;
      }
      const float low = sums[tile][2 * half] * factor;
      const float high = sums[tile][2 * half + 1] * factor;
      if (kAdds) {
        float* const to = tensor.head<float>(batch, head, args.head_size).at(row) + column;
        to[0] += low;
        to[1] += high;
      } else {
        Elem* const to = tensor.head<Elem>(batch, head, args.head_size).at(row) + column;
        *reinterpret_cast<uint32_t*>(to) = pack_bf16(low, high);
      }
    }
  }
}

template <int kHeadSize>
struct QueryShared {
  Tile<kBlockRows, kHeadSize> q;
  Tile<kBlockRows, kHeadSize> d_out;
  Tile<kKeyTile, kHeadSize> k;
  Tile<kKeyTile, kHeadSize> v;
};

/// d_query. Grid: tiles of queries, heads, batches.
template <int kHeadSize, bool kAdds>
__global__ void __launch_bounds__(kThreads) query_gradients(const __grid_constant__ Args args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<QueryShared<kHeadSize>*>(memory);
  constexpr int kStride = Tile<kKeyTile, kHeadSize>::kStride;
  constexpr int kKeyTiles = kKeyTile / 8;
  const int batch = static_cast<int>(blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  const int first_query = static_cast<int>(blockIdx.x) * kBlockRows;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpSize * kWarpRows;
  const int size = args.head_size;
  const auto k = args.k.head<const Elem>(batch, head / args.group, size);
  const auto v = args.v.head<const Elem>(batch, head / args.group, size);
  const LaneQueries rows(args, batch, first_query + warp_row);
  const KeyRange range(args, batch, first_query);
  shared.q.start_load(args.q.head<const Elem>(batch, head, size), first_query, args.queries, size);
  shared.d_out.start_load(args.d_out.head<const Elem>(batch, head, size), first_query, args.queries,
                          size);
  float lse[2];
  float mean[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = min(rows.query[half], args.queries - 1);
    lse[half] = args.lse_of(batch, head)[query] * kLog2e;
    mean[half] = args.means_of(batch, head)[query];
  }
  SumTile sums[kHeadSize / 8];
  clear(sums);
  for (int key = range.begin; key < range.end; key += kKeyTile) {
    shared.k.start_load(k, key, args.keys, size);
    shared.v.start_load(v, key, args.keys, size);
    ptx::end_copy_group();
    ptx::wait_for_copies<0>();
    __syncthreads();
    SumTile scores[kKeyTiles];
    SumTile d_weights[kKeyTiles];
    clear(scores);
    clear(d_weights);
    multiply_rows<kHeadSize, kKeyTiles, kStride>(scores, shared.q.at(warp_row, 0), shared.k.elems);
    multiply_rows<kHeadSize, kKeyTiles, kStride>(d_weights, shared.d_out.at(warp_row, 0),
                                                 shared.v.elems);
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i / 2;
        const bool sees = rows.sees(half, key + 8 * tile + sum_column() + i % 2);
        const float weight = ptx::exp2_approx(scores[tile][i] * args.scale * kLog2e - lse[half]);
        scores[tile][i] = sees ? weight * (d_weights[tile][i] - mean[half]) : 0.0f;
      }
    }
    multiply_weights<kKeyTiles, kHeadSize / 8, kStride>(sums, scores, shared.k.elems);
    __syncthreads();
  }
  ptx::wait_for_copies<0>();
  write_sums<kAdds>(args, args.d_q, sums, args.scale, batch, head, first_query + warp_row,
                    args.queries, 0);
}

/// Columns of d_key and d_value that a block computes: large heads are divided among blocks, so
/// that the sums stay in registers.
template <int kHeadSize>
constexpr int kGradientColumns = kHeadSize > 128 ? kHeadSize / 2 : kHeadSize;

template <int kHeadSize>
struct KeyShared {
  Tile<kBlockRows, kHeadSize> k;
  Tile<kBlockRows, kHeadSize> v;
  Tile<kQueryTile, kHeadSize> q;
  Tile<kQueryTile, kHeadSize> d_out;
  float lse[kQueryTile];
  float mean[kQueryTile];
  int first[kQueryTile];  // keys that the queries see
  int end[kQueryTile];

  __device__ void load_queries(const Args& args, int batch, int head, int begin) {
    const int size = args.head_size;
    q.start_load(args.q.head<const Elem>(batch, head, size), begin, args.queries, size);
    d_out.start_load(args.d_out.head<const Elem>(batch, head, size), begin, args.queries, size);
    ptx::end_copy_group();
    const int i = static_cast<int>(threadIdx.x);
    if (i < kQueryTile) {
      const bool valid = begin + i < args.queries;
      const int query = valid ? begin + i : args.queries - 1;
      lse[i] = args.lse_of(batch, head)[query] * kLog2e;
      mean[i] = args.means_of(batch, head)[query];
      first[i] = args.first_key(batch, query);
      end[i] = valid ? args.end_key(query) : 0;
    }
    ptx::wait_for_copies<0>();
  }
};

/// d_key and d_value, summed over the query heads that share them. Grid: tiles of keys, key/value
/// heads times parts of their columns, batches.
template <int kHeadSize, bool kAdds>
__global__ void __launch_bounds__(kThreads) key_gradients(const __grid_constant__ Args args) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<KeyShared<kHeadSize>*>(memory);
  constexpr int kStride = Tile<kQueryTile, kHeadSize>::kStride;
  constexpr int kQueryTiles = kQueryTile / 8;
  constexpr int kColumns = kGradientColumns<kHeadSize>;
  constexpr int kParts = kHeadSize / kColumns;
  const int batch = static_cast<int>(blockIdx.z);
  const int kv_head = static_cast<int>(blockIdx.y) / kParts;
  const int first_column = static_cast<int>(blockIdx.y) % kParts * kColumns;
  const int first_key = static_cast<int>(blockIdx.x) * kBlockRows;
  const int last_key = min(first_key + kBlockRows, args.keys) - 1;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpSize * kWarpRows;
  const int size = args.head_size;
  shared.k.start_load(args.k.head<const Elem>(batch, kv_head, size), first_key, args.keys, size);
  shared.v.start_load(args.v.head<const Elem>(batch, kv_head, size), first_key, args.keys, size);
  const int unseen = args.causal ? max(0, first_key - (args.keys - args.queries)) : 0;

  SumTile d_key[kColumns / 8];
  SumTile d_value[kColumns / 8];
  clear(d_key);
  clear(d_value);
  for (int head = kv_head * args.group; head < (kv_head + 1) * args.group; ++head) {
    for (int query = unseen / kQueryTile * kQueryTile; query < args.queries; query += kQueryTile) {
      if (args.first_key(batch, query) > last_key) {
        break;  // later queries see later keys only
      }
      __syncthreads();  // the previous tile has been read
      shared.load_queries(args, batch, head, query);
      __syncthreads();
      SumTile weights[kQueryTiles];
      SumTile d_weights[kQueryTiles];
      clear(weights);
      clear(d_weights);
      multiply_rows<kHeadSize, kQueryTiles, kStride>(weights, shared.k.at(warp_row, 0),
                                                     shared.q.elems);
      multiply_rows<kHeadSize, kQueryTiles, kStride>(d_weights, shared.v.at(warp_row, 0),
                                                     shared.d_out.elems);
#pragma unroll
      for (int tile = 0; tile < kQueryTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + warp_row + sum_row(i / 2);
          const int column = 8 * tile + sum_column() + i % 2;
          const bool sees = shared.first[column] <= key && key < shared.end[column];
          const float weight =
              ptx::exp2_approx(weights[tile][i] * args.scale * kLog2e - shared.lse[column]);
          weights[tile][i] = sees ? weight : 0.0f;
          d_weights[tile][i] = sees ? weight * (d_weights[tile][i] - shared.mean[column]) : 0.0f;
        }
      }
      multiply_weights<kQueryTiles, kColumns / 8, kStride>(d_value, weights,
                                                           shared.d_out.at(0, first_column));
      multiply_weights<kQueryTiles, kColumns / 8, kStride>(d_key, d_weights,
                                                           shared.q.at(0, first_column));
    }
  }
  ptx::wait_for_copies<0>();
  const int row = first_key + warp_row;
  write_sums<kAdds>(args, args.d_k, d_key, args.scale, batch, kv_head, row, args.keys,
                    first_column);
  write_sums<kAdds>(args, args.d_v, d_value, 1.0f, batch, kv_head, row, args.keys, first_column);
}

__global__ void fill_kernel(float* values, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    values[i] = -INFINITY;
  }
}

// ---- launchers

/// Calls call.template operator()<kHeadSize>() with the smallest tile that holds a head.
void dispatch_head_size(int64_t head_size, const auto& call) {
  if (head_size <= 64) {
    call.template operator()<64>();
  } else if (head_size <= 128) {
    call.template operator()<128>();
  } else if (head_size <= 192) {
    call.template operator()<192>();
  } else {
    check(head_size <= 256, "attention inside documents: a head of {} elements", head_size);
    call.template operator()<256>();
  }
}

template <class Shared, class Kernel>
void allow_shared_memory(Kernel* kernel) {
  BRAID_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(sizeof(Shared))));
}

template <int kHeadSize, bool kSums>
void prepare() {
  allow_shared_memory<ForwardShared<kHeadSize>>(attend<kHeadSize, kSums>);
  allow_shared_memory<QueryShared<kHeadSize>>(query_gradients<kHeadSize, kSums>);
  allow_shared_memory<KeyShared<kHeadSize>>(key_gradients<kHeadSize, kSums>);
}

int narrowed(int64_t value) {
  check(value <= std::numeric_limits<int>::max(), "attention inside documents: a size of {}",
        value);
  return static_cast<int>(value);
}

Args args_of(const AttentionProblem& problem, const DocumentRows& documents,
             const AttentionPointers& at) {
  check(all_aligned(16, {at.q, at.k, at.v, at.d_out}) && problem.q.row % kVector == 0 &&
            problem.kv.row % kVector == 0,
        "attention inside documents: an operand is not 16-byte aligned");
  const AttentionSizes& sizes = problem.sizes;
  return {.q = {at.q, problem.q},
          .k = {at.k, problem.kv},
          .v = {at.v, problem.kv},
          .out = {at.out, problem.out},
          .d_out = {at.d_out, problem.out},
          .d_q = {at.d_q, problem.d_q},
          .d_k = {at.d_k, problem.d_kv},
          .d_v = {at.d_v, problem.d_kv},
          .lse = reinterpret_cast<float*>(at.lse),
          .lse_rows = problem.lse,
          .starts = documents.starts,
          .starts_sequence = documents.sequence,
          .window = documents.window.limit.window,
          .query_positions = documents.window.query_positions,
          .query_begin = documents.query_begin,
          .key_positions = documents.key_positions,
          .kv_sequence = narrowed(documents.kv_sequence),
          .key_begin = narrowed(documents.key_begin),
          .heads = narrowed(sizes.heads),
          .group = narrowed(sizes.group()),
          .head_size = narrowed(sizes.head_size),
          .queries = narrowed(sizes.queries),
          .keys = narrowed(sizes.keys),
          .causal = problem.causal,
          .scale = problem.scale};
}

dim3 grid_of_rows(int64_t rows, int64_t rows_per_block, int64_t heads, int64_t batches) {
  constexpr int64_t kMaxBatches = 65535;
  check(heads <= kMaxBatches && batches <= kMaxBatches, "attention of {} heads of {} sequences",
        heads, batches);
  return {grid_of(ceil_div(rows, rows_per_block)), static_cast<unsigned>(heads),
          static_cast<unsigned>(batches)};
}

template <int kHeadSize, bool kSums>
void launch_forward(const Args& args, const AttentionSizes& sizes, cudaStream_t stream) {
  attend<kHeadSize, kSums><<<grid_of_rows(sizes.queries, kBlockRows, sizes.heads, sizes.batches),
                             kThreads, sizeof(ForwardShared<kHeadSize>), stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <int kHeadSize, bool kSums>
void launch_backward(const Args& args, const AttentionSizes& sizes, cudaStream_t stream) {
  add_up_means<<<grid_of_rows(sizes.queries, kWarps, sizes.heads, sizes.batches), kThreads, 0,
                 stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
  query_gradients<kHeadSize, kSums>
      <<<grid_of_rows(sizes.queries, kBlockRows, sizes.heads, sizes.batches), kThreads,
         sizeof(QueryShared<kHeadSize>), stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
  const int64_t parts = kHeadSize / kGradientColumns<kHeadSize>;
  key_gradients<kHeadSize, kSums>
      <<<grid_of_rows(sizes.keys, kBlockRows, sizes.kv_heads * parts, sizes.batches), kThreads,
         sizeof(KeyShared<kHeadSize>), stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void prepare_document_attention(const AttentionSizes& sizes) {
  dispatch_head_size(sizes.head_size, [&]<int kHeadSize>() {
    prepare<kHeadSize, false>();
    prepare<kHeadSize, true>();
  });
}

void launch_document_attention(const AttentionProblem& problem, const DocumentRows& documents,
                               const AttentionPointers& at, DocumentResult result,
                               cudaStream_t stream) {
  const Args args = args_of(problem, documents, at);
  dispatch_head_size(problem.sizes.head_size, [&]<int kHeadSize>() {
    if (result == DocumentResult::kMerged) {
      launch_forward<kHeadSize, true>(args, problem.sizes, stream);
    } else {
      launch_forward<kHeadSize, false>(args, problem.sizes, stream);
    }
  });
}

void launch_document_attention_backward(const AttentionProblem& problem,
                                        const DocumentRows& documents, const AttentionPointers& at,
                                        DocumentResult result, std::byte* scratch,
                                        cudaStream_t stream) {
  Args args = args_of(problem, documents, at);
  args.means = reinterpret_cast<float*>(scratch);
  dispatch_head_size(problem.sizes.head_size, [&]<int kHeadSize>() {
    if (result == DocumentResult::kMerged) {
      launch_backward<kHeadSize, true>(args, problem.sizes, stream);
    } else {
      launch_backward<kHeadSize, false>(args, problem.sizes, stream);
    }
  });
}

void fill_no_keys(float* lse, int64_t count, cudaStream_t stream) {
  constexpr int64_t kFillThreads = 256;
  fill_kernel<<<grid_of(ceil_div(count, kFillThreads)), static_cast<unsigned>(kFillThreads), 0,
                stream>>>(lse, count);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace braid
