#include "ops/cross_entropy.h"

#include <cmath>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/row_statistics.cuh"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "ops/attributes.h"

// Forward: one block per row, one pass over the logits. Every thread keeps a running maximum and
// the sum of exponentials relative to it (Milakov and Gimelshein, Online normalizer calculation for
// softmax, 2018); it rescales the sum once per batch of vectors, not per element. The losses of
// rows go to scratch in f64 and one block sums them, so that the loss is bitwise repeatable.
// Backward: elementwise, one read and one write.
//
// Columns split over ranks: the same pass writes its statistics instead of a loss, and a small
// kernel merges those of all ranks, a thread per row.
//
// A label >= vocabulary cannot stop a step on the device: the loss and the row's gradient become
// NaN. The host checks labels before it uploads them.
namespace braid {
namespace {

constexpr int kForwardThreads = 512;
constexpr int kForwardUnroll = 4;
constexpr int kLossThreads = 1024;

template <class T>
struct ForwardArgs {
  const T* logits = nullptr;        // [N,columns]
  const int32_t* labels = nullptr;  // [N]
  float* lse = nullptr;             // f32 [N]
  double* row_losses = nullptr;     // f64 [N]
  int64_t columns = 0;
  int64_t vocabulary = 0;  // valid columns
};

/// This thread's vectors of the vectors that a block processes at once.
template <class T>
struct Batch {
  DeviceVector<T, kVectorElems<T>> vectors[kForwardUnroll];
};

/// Elements after `valid` count as -infinity; with kWhole there are none.
template <bool kAligned, bool kWhole, class T>
__device__ Batch<T> load_batch(const T* from, int64_t valid) {
  constexpr int V = kVectorElems<T>;
  Batch<T> batch;
#pragma unroll
  for (int u = 0; u < kForwardUnroll; ++u) {
    const auto c = static_cast<int64_t>(u * kForwardThreads + threadIdx.x) * V;
    if (kAligned && (kWhole || c + V <= valid)) {
      batch.vectors[u] = load_vector<V, true>(from + c, valid - c);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        batch.vectors[u].elems[i] = c + i < valid ? from[c + i] : narrow<T>(-INFINITY);
      }
    }
  }
  return batch;
}

template <class T>
__device__ void add_batch(RunningSum& running, const Batch<T>& batch) {
  constexpr int V = kVectorElems<T>;
  float max = running.max;
#pragma unroll
  for (int u = 0; u < kForwardUnroll; ++u) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      max = fmaxf(max, widen(batch.vectors[u].elems[i]));
    }
  }
  const float reference = reference_of(max);
  float sum = running.sum * exp_of(running.max - reference);
#pragma unroll
  for (int u = 0; u < kForwardUnroll; ++u) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sum += exp_of(widen(batch.vectors[u].elems[i]) - reference);
    }
  }
  running = {max, sum};
}

/// Merges over the block; every thread of the first warp gets the result.
__device__ RunningSum merge_block(RunningSum running, RunningSum* shared) {
  const auto merge_warp = [](RunningSum mine) {
#pragma unroll
    for (int lane_mask = kWarpSize / 2; lane_mask > 0; lane_mask /= 2) {
      const RunningSum other{__shfl_xor_sync(0xffffffffu, mine.max, lane_mask),
                             __shfl_xor_sync(0xffffffffu, mine.sum, lane_mask)};
      mine = merge(mine, other);
    }
    return mine;
  };
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  running = merge_warp(running);
  if (lane == 0) {
    shared[threadIdx.x / kWarpSize] = running;
  }
  __syncthreads();
  return merge_warp(lane < kForwardThreads / kWarpSize ? shared[lane] : RunningSum{});
}

template <class T>
__device__ double row_loss(const T* logits, int32_t label, int64_t vocabulary, float lse) {
  if (label < 0) {
    return 0;
  }
  return label < vocabulary ? static_cast<double>(lse) - static_cast<double>(widen(logits[label]))
                            : static_cast<double>(NAN);
}

/// Largest logit of a row and sum of exponentials relative to it; every thread of the first warp
/// gets them.
template <bool kAligned, class T>
__device__ RunningSum sum_row(const T* logits, int64_t count, RunningSum* shared) {
  constexpr int64_t kBatch = int64_t{kForwardUnroll} * kForwardThreads * kVectorElems<T>;
  RunningSum running;
  int64_t begin = 0;
  for (; kAligned && begin + kBatch <= count; begin += kBatch) {
    add_batch(running, load_batch<true, true>(logits + begin, kBatch));
  }
  for (; begin < count; begin += kBatch) {
    add_batch(running, load_batch<kAligned, false>(logits + begin, count - begin));
  }
  return merge_block(running, shared);
}

template <bool kAligned, class T>
__global__ void __launch_bounds__(kForwardThreads) forward_kernel(ForwardArgs<T> args) {
  __shared__ RunningSum shared[kWarpSize];
  const int64_t row = blockIdx.x;
  const T* const logits = args.logits + row * args.columns;
  const RunningSum running = sum_row<kAligned>(logits, args.vocabulary, shared);
  if (threadIdx.x == 0) {
    const float lse = running.max + logf(running.sum);
    args.lse[row] = lse;
    args.row_losses[row] = row_loss(logits, args.labels[row], args.vocabulary, lse);
  }
}

template <class T>
struct PartialArgs {
  const T* logits = nullptr;        // [N,columns]
  const int32_t* labels = nullptr;  // [N]
  float* stats = nullptr;           // f32 [N,3]
  int64_t columns = 0;
  int64_t valid = 0;       // of these
  int64_t begin = 0;       // token of column 0
  int64_t vocabulary = 0;  // tokens of all ranks
};

/// The label's logit if this rank has its column, otherwise 0. An unknown label gives NaN on every
/// rank.
template <class T>
__device__ float logit_of_label(const PartialArgs<T>& args, const T* logits, int32_t label) {
  if (label >= args.vocabulary) {
    return NAN;
  }
  const int64_t column = label - args.begin;
  return column >= 0 && column < args.valid ? widen(logits[column]) : 0.0f;
}

template <bool kAligned, class T>
__global__ void __launch_bounds__(kForwardThreads) partial_kernel(PartialArgs<T> args) {
  __shared__ RunningSum shared[kWarpSize];
  const int64_t row = blockIdx.x;
  const T* const logits = args.logits + row * args.columns;
  const RunningSum running = sum_row<kAligned>(logits, args.valid, shared);
  if (threadIdx.x == 0) {
    float* const stats = args.stats + row * kCrossEntropyStats;
    stats[0] = running.max;
    stats[1] = running.sum;
    stats[2] = logit_of_label(args, logits, args.labels[row]);
  }
}

constexpr int kMergeThreads = 256;

struct MergeArgs {
  const float* stats = nullptr;     // f32 [ranks*rows,3]
  const int32_t* labels = nullptr;  // [rows]
  float* lse = nullptr;             // f32 [rows]
  double* row_losses = nullptr;     // f64 [rows]
  int64_t rows = 0;
  int64_t ranks = 0;
};

__global__ void __launch_bounds__(kMergeThreads) merge_kernel(MergeArgs args) {
  const int64_t row = int64_t{blockIdx.x} * kMergeThreads + threadIdx.x;
  if (row >= args.rows) {
    return;
  }
  const MergedRow merged = merge_row(args.stats, args.rows, args.ranks, row);
  args.lse[row] = merged.lse;
  args.row_losses[row] =
      args.labels[row] < 0 ? 0 : static_cast<double>(merged.lse) - merged.of_label;
}

struct LossArgs {
  const double* row_losses = nullptr;  // f64 [rows]
  const float* loss_scale = nullptr;   // f32 [1]
  float* loss = nullptr;               // f32 [1]
  int64_t rows = 0;
};

__global__ void __launch_bounds__(kLossThreads) loss_kernel(LossArgs args) {
  __shared__ double shared[kWarpSize];
  double sum = 0;
#pragma unroll 4
  for (int64_t row = threadIdx.x; row < args.rows; row += kLossThreads) {
    sum += args.row_losses[row];
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) {
    *args.loss = static_cast<float>(static_cast<double>(*args.loss_scale) * sum);
  }
}

struct ZLossArgs {
  const float* lse = nullptr;         // f32 [rows]
  const int32_t* labels = nullptr;    // [rows]
  const float* loss_scale = nullptr;  // f32 [1]
  float* z = nullptr;                 // f32 [1]
  int64_t rows = 0;
  double coefficient = 0;
};

__global__ void __launch_bounds__(kLossThreads) z_loss_kernel(ZLossArgs args) {
  __shared__ double shared[kWarpSize];
  double sum = 0;
#pragma unroll 4
  for (int64_t row = threadIdx.x; row < args.rows; row += kLossThreads) {
    const auto lse = static_cast<double>(args.lse[row]);
    sum += args.labels[row] < 0 ? 0 : lse * lse;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) {
    *args.z = static_cast<float>(static_cast<double>(*args.loss_scale) * args.coefficient * sum);
  }
}

template <class T>
struct BackwardArgs {
  const T* logits = nullptr;          // [N,columns]
  const int32_t* labels = nullptr;    // [N]
  const float* loss_scale = nullptr;  // f32 [rows / rows_of_scale]
  const float* lse = nullptr;         // f32 [N]
  T* d_logits = nullptr;              // [N,columns]
  int64_t columns = 0;
  int64_t valid = 0;       // of these
  int64_t begin = 0;       // token of column 0
  int64_t vocabulary = 0;  // tokens of all ranks
  int64_t rows_of_scale = 1;
  unsigned chunks = 1;  // of a row
  float z_slope = 0;    // 2 * z_loss
};

constexpr int kBackwardUnroll = 4;

template <bool kAligned, class T>
__global__ void __launch_bounds__(256) backward_kernel(BackwardArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  const int64_t row = blockIdx.x / args.chunks;
  const int64_t chunk = blockIdx.x % args.chunks;
  const int64_t first = (chunk * kBackwardUnroll * blockDim.x + threadIdx.x) * V;
  const T* const logits = args.logits + row * args.columns;
  DeviceVector<T, V> x[kBackwardUnroll];
#pragma unroll
  for (int u = 0; u < kBackwardUnroll; ++u) {
    const int64_t c = first + u * static_cast<int64_t>(blockDim.x) * V;
    if (c < args.columns) {
      x[u] = load_vector<V, kAligned>(logits + c, args.columns - c);
    }
  }
  const int32_t label = args.labels[row];
  const float scale = label < args.vocabulary ? args.loss_scale[row / args.rows_of_scale] : NAN;
  const float lse = args.lse[row];
  // Of the softmax; without a loss of z exactly 1, so that it changes no bit.
  const float weight = 1.0f + args.z_slope * lse;
#pragma unroll
  for (int u = 0; u < kBackwardUnroll; ++u) {
    const int64_t c = first + u * static_cast<int64_t>(blockDim.x) * V;
    if (c >= args.columns) {
      continue;
    }
    // The label's position in this vector, if it is there.
    const auto label_at = static_cast<int>(label - args.begin - c);
    const auto valid = static_cast<int>((label < 0 ? 0 : args.valid) - c);
    DeviceVector<T, V> d;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float p = weight * exp_of(widen(x[u].elems[i]) - lse);
      const float slope = scale * (i == label_at ? p - 1.0f : p);
      d.elems[i] = narrow<T>(i < valid ? slope : 0.0f);
    }
    store_vector<kAligned>(args.d_logits + row * args.columns + c, d, args.columns - c);
  }
}

struct Sizes {
  int64_t rows = 0;
  int64_t columns = 0;
  CrossEntropyShardAttributes shard;

  Sizes(const OpSpec& spec, const CrossEntropyShardAttributes& columns_of)
      : rows(spec.operands[0].shape[0]), columns(spec.operands[0].shape[1]), shard(columns_of) {
    check(columns <= std::numeric_limits<int32_t>::max(), "op {}: {} columns", spec.op, columns);
  }
};

void launch_loss(const double* row_losses, int64_t rows, const ZLoss& z,
                 const CudaKernelArgs& args) {
  loss_kernel<<<1, kLossThreads, 0, args.stream>>>({.row_losses = row_losses,
                                                    .loss_scale = args.data<const float>(2),
                                                    .loss = args.data<float>(3),
                                                    .rows = rows});
  BRAID_CUDA_CHECK(cudaGetLastError());
  if (z.z_loss > 0) {
    z_loss_kernel<<<1, kLossThreads, 0, args.stream>>>({.lse = args.data<const float>(4),
                                                        .labels = args.data<const int32_t>(1),
                                                        .loss_scale = args.data<const float>(2),
                                                        .z = args.data<float>(5),
                                                        .rows = rows,
                                                        .coefficient = z.z_loss});
    BRAID_CUDA_CHECK(cudaGetLastError());
  }
}

template <class T>
void launch_forward(const Sizes& sizes, const ZLoss& z, const CudaKernelArgs& args) {
  const ForwardArgs<T> o{.logits = args.data<const T>(0),
                         .labels = args.data<const int32_t>(1),
                         .lse = args.data<float>(4),
                         .row_losses = reinterpret_cast<double*>(args.scratch),
                         .columns = sizes.columns,
                         .vocabulary = sizes.shard.vocabulary};
  const unsigned grid = grid_of(sizes.rows);
  if (sizes.columns % kVectorElems<T> == 0 && all_aligned(16, {o.logits})) {
    forward_kernel<true><<<grid, kForwardThreads, 0, args.stream>>>(o);
  } else {
    forward_kernel<false><<<grid, kForwardThreads, 0, args.stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
  launch_loss(o.row_losses, sizes.rows, z, args);
}

template <class T>
void launch_partial(const Sizes& sizes, const CudaKernelArgs& args) {
  const PartialArgs<T> o{.logits = args.data<const T>(0),
                         .labels = args.data<const int32_t>(1),
                         .stats = args.data<float>(2),
                         .columns = sizes.columns,
                         .valid = sizes.shard.valid_columns(sizes.columns),
                         .begin = sizes.shard.vocabulary_begin,
                         .vocabulary = sizes.shard.vocabulary};
  const unsigned grid = grid_of(sizes.rows);
  if (sizes.columns % kVectorElems<T> == 0 && all_aligned(16, {o.logits})) {
    partial_kernel<true><<<grid, kForwardThreads, 0, args.stream>>>(o);
  } else {
    partial_kernel<false><<<grid, kForwardThreads, 0, args.stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

void launch_merge(int64_t rows, int64_t ranks, const ZLoss& z, const CudaKernelArgs& args) {
  const MergeArgs o{.stats = args.data<const float>(0),
                    .labels = args.data<const int32_t>(1),
                    .lse = args.data<float>(4),
                    .row_losses = reinterpret_cast<double*>(args.scratch),
                    .rows = rows,
                    .ranks = ranks};
  merge_kernel<<<grid_of(ceil_div(rows, kMergeThreads)), kMergeThreads, 0, args.stream>>>(o);
  BRAID_CUDA_CHECK(cudaGetLastError());
  launch_loss(o.row_losses, rows, z, args);
}

template <class T>
void launch_backward(const Sizes& sizes, const CrossEntropyBackwardAttributes& attributes,
                     const CudaKernelArgs& args) {
  const RowChunks chunks(ceil_div(sizes.columns, kVectorElems<T>), kBackwardUnroll);
  const BackwardArgs<T> o{.logits = args.data<const T>(0),
                          .labels = args.data<const int32_t>(1),
                          .loss_scale = args.data<const float>(2),
                          .lse = args.data<const float>(3),
                          .d_logits = args.data<T>(4),
                          .columns = sizes.columns,
                          .valid = sizes.shard.valid_columns(sizes.columns),
                          .begin = sizes.shard.vocabulary_begin,
                          .vocabulary = sizes.shard.vocabulary,
                          .rows_of_scale = sizes.rows / attributes.scales.sequences,
                          .chunks = chunks.chunks,
                          .z_slope = static_cast<float>(2 * attributes.z.z_loss)};
  const unsigned grid = grid_of(sizes.rows * chunks.chunks);
  if (sizes.columns % kVectorElems<T> == 0 && all_aligned(16, {o.logits, o.d_logits})) {
    backward_kernel<true><<<grid, chunks.threads, 0, args.stream>>>(o);
  } else {
    backward_kernel<false><<<grid, chunks.threads, 0, args.stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

CudaKernel make_cuda_cross_entropy(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<CrossEntropyAttributes>(spec);
  const Sizes sizes(spec, {.vocabulary = attributes.vocabulary});
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    return {.launch = [sizes, z = attributes.z](
                          const CudaKernelArgs& args) { launch_forward<T>(sizes, z, args); },
            .scratch_bytes = row_losses_bytes(sizes.rows)};
  });
}

CudaKernel make_cuda_cross_entropy_partial(const OpSpec& spec, CudaContext& /*context*/) {
  const Sizes sizes(spec, attributes_of<CrossEntropyShardAttributes>(spec));
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    return {.launch = [sizes](const CudaKernelArgs& args) { launch_partial<T>(sizes, args); }};
  });
}

CudaKernel make_cuda_cross_entropy_merge(const OpSpec& spec, CudaContext& /*context*/) {
  check(spec.operands[0].dtype == DType::kF32, "op {}: no CUDA kernel for {}", spec.op,
        dtype_name(spec.operands[0].dtype));
  const int64_t rows = spec.operands[1].shape[0];
  const int64_t ranks = spec.operands[0].shape[0] / rows;
  const ZLoss z = attributes_of<CrossEntropyMergeAttributes>(spec).z;
  return {.launch = [=](const CudaKernelArgs& args) { launch_merge(rows, ranks, z, args); },
          .scratch_bytes = row_losses_bytes(rows)};
}

CudaKernel make_cuda_cross_entropy_backward(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<CrossEntropyBackwardAttributes>(spec);
  const Sizes sizes(spec, attributes.shard);
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    return {.launch = [sizes, attributes](const CudaKernelArgs& args) {
      launch_backward<T>(sizes, attributes, args);
    }};
  });
}

}  // namespace braid
