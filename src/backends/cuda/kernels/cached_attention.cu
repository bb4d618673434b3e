#include "ops/cached_attention.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"

// One kernel copies the new keys and values to their places in the caches. In the next, a block has
// one head of one row: each warp attends to every kWarps-th key with the softmax and the sum in
// registers, and the warps' results are merged in shared memory, in their order. So results do not
// depend on the device, and are the same for a row whatever rows run beside it. Reads each key once
// per head and row: made for few rows, where the caches' bytes limit the speed.
namespace braid {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kMaxPerLane = 16;  ///< elements of a head
constexpr float kNone = -INFINITY;

struct CacheSizes {
  int64_t rows = 0;  // of a sequence
  int64_t sequences = 0;
  int64_t capacity = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_size = 0;
  float scale = 0;
  int64_t window = 0;  // keys that a row sees; 0: no limit

  explicit CacheSizes(const OpSpec& spec) {
    const auto a = attributes_of<CachedAttentionAttributes>(spec);
    sequences = spec.operands[1].shape[0];
    rows = spec.operands[0].shape[0] / sequences;
    capacity = spec.operands[3].shape[1];
    heads = static_cast<int>(a.heads);
    kv_heads = static_cast<int>(a.kv_heads);
    head_size = static_cast<int>(a.head_size);
    scale = static_cast<float>(a.scale);
    window = a.window.window;
  }

  __host__ __device__ int64_t kv_width() const { return int64_t{kv_heads} * head_size; }
  __host__ __device__ int64_t out_width() const { return int64_t{heads} * head_size; }
  __host__ __device__ int64_t qkv_width() const { return out_width() + 2 * kv_width(); }
};

template <class T>
struct CacheArgs {
  CacheSizes sizes;
  const T* qkv;           // [sequences * rows, qkv_width]
  const int32_t* begins;  // [sequences]
  const int32_t* counts;  // [sequences]
  T* keys;                // [sequences, capacity, kv_width]
  T* values;              // the same
  T* out;                 // [sequences * rows, out_width]
};

/// A block has one row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    append_kernel(const __grid_constant__ CacheArgs<T> args) {
  const CacheSizes& s = args.sizes;
  const int64_t row = blockIdx.x;
  const int64_t sequence = row / s.rows;
  const int64_t index = row % s.rows;
  if (index >= args.counts[sequence]) {
    return;
  }
  const int64_t width = s.kv_width();
  const int64_t to = (sequence * s.capacity + args.begins[sequence] + index) * width;
  const T* const from = args.qkv + row * s.qkv_width() + s.out_width();
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    args.keys[to + i] = from[i];
    args.values[to + i] = from[width + i];
  }
}

/// The softmax over the keys of a warp so far; each lane has kPerLane elements of the sum, lane +
/// 32 i.
template <int kPerLane>
struct PartialSum {
  float max = kNone;
  float total = 0;
  float sum[kPerLane] = {};
};

template <class T, int kPerLane>
__device__ void attend(const CacheArgs<T>& args, const float (&query)[kPerLane], const T* key,
                       const T* value, PartialSum<kPerLane>& partial) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float score = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int c = lane + i * kWarpSize;
    score += c < args.sizes.head_size ? query[i] * widen(key[c]) : 0.0f;
  }
  score = warp_sum(score) * args.sizes.scale;
  const float max = fmaxf(partial.max, score);
  const float factor = expf(partial.max - max);  // 0 for the first key
  const float weight = expf(score - max);
  partial.max = max;
  partial.total = partial.total * factor + weight;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int c = lane + i * kWarpSize;
    partial.sum[i] =
        partial.sum[i] * factor + (c < args.sizes.head_size ? weight * widen(value[c]) : 0.0f);
  }
}

/// Element c of the merged result; `sums` [kWarps, head_size].
__device__ float merged(const float* max, const float* total, const float* sums, int head_size,
                        int c) {
  float largest = kNone;
  for (int w = 0; w < kWarps; ++w) {
    largest = fmaxf(largest, max[w]);
  }
  float all = 0;
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) {
    const float factor = expf(max[w] - largest);  // 0 for a warp without keys
    all += factor * total[w];
    sum += factor * sums[w * head_size + c];
  }
  return sum / all;
}

/// Grid: rows, heads. Shared memory: [kWarps, head_size].
template <int kPerLane, class T>
__global__ void __launch_bounds__(kThreads)
    attend_kernel(const __grid_constant__ CacheArgs<T> args) {
  extern __shared__ float sums[];
  __shared__ float max[kWarps];
  __shared__ float total[kWarps];
  const CacheSizes& s = args.sizes;
  const int64_t row = blockIdx.x;
  const auto head = static_cast<int>(blockIdx.y);
  const int64_t sequence = row / s.rows;
  const int64_t index = row % s.rows;
  T* const out = args.out + row * s.out_width() + int64_t{head} * s.head_size;
  if (index >= args.counts[sequence]) {
    for (int c = static_cast<int>(threadIdx.x); c < s.head_size; c += kThreads) {
      out[c] = narrow<T>(0.0f);
    }
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  float query[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int c = lane + i * kWarpSize;
    query[i] = c < s.head_size
                   ? widen(args.qkv[row * s.qkv_width() + int64_t{head} * s.head_size + c])
                   : 0.0f;
  }
  const int64_t first =
      sequence * s.capacity * s.kv_width() + int64_t{head / (s.heads / s.kv_heads)} * s.head_size;
  const int64_t num_keys = args.begins[sequence] + index + 1;
  const int64_t first_key = s.window > 0 && s.window < num_keys ? num_keys - s.window : 0;
  PartialSum<kPerLane> partial;
  for (int64_t key = first_key + warp; key < num_keys; key += kWarps) {
    const int64_t at = first + key * s.kv_width();
    attend(args, query, args.keys + at, args.values + at, partial);
  }
  if (lane == 0) {
    max[warp] = partial.max;
    total[warp] = partial.total;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int c = lane + i * kWarpSize;
    if (c < s.head_size) {
      sums[warp * s.head_size + c] = partial.sum[i];
    }
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < s.head_size; c += kThreads) {
    out[c] = narrow<T>(merged(max, total, sums, s.head_size, c));
  }
}

template <class T>
void launch(const CacheArgs<T>& args, cudaStream_t stream) {
  const CacheSizes& s = args.sizes;
  const unsigned rows = grid_of(s.sequences * s.rows);
  append_kernel<<<rows, kThreads, 0, stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
  const dim3 grid(rows, static_cast<unsigned>(s.heads));
  const size_t shared_bytes = sizeof(float) * kWarps * static_cast<size_t>(s.head_size);
  if (s.head_size <= 4 * kWarpSize) {
    attend_kernel<4><<<grid, kThreads, shared_bytes, stream>>>(args);
  } else if (s.head_size <= 8 * kWarpSize) {
    attend_kernel<8><<<grid, kThreads, shared_bytes, stream>>>(args);
  } else {
    attend_kernel<kMaxPerLane><<<grid, kThreads, shared_bytes, stream>>>(args);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

CudaKernel make_cuda_cached_attention(const OpSpec& spec, CudaContext& /*context*/) {
  const CacheSizes sizes(spec);
  check(sizes.head_size <= kMaxPerLane * kWarpSize,
        "cached_attention: heads of {} elements; its kernel has up to {}", sizes.head_size,
        kMaxPerLane * kWarpSize);
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    return {.launch = [sizes](const CudaKernelArgs& args) {
      launch(CacheArgs<T>{.sizes = sizes,
                          .qkv = args.data<const T>(0),
                          .begins = args.data<const int32_t>(1),
                          .counts = args.data<const int32_t>(2),
                          .keys = args.data<T>(3),
                          .values = args.data<T>(4),
                          .out = args.data<T>(5)},
             args.stream);
    }};
  });
}

}  // namespace braid
