// A part of a weight begins and ends anywhere, so both kernels go through it in chunks of eight
// elements that lie in one row and one block, if the weight's columns are a multiple of eight. The
// largest magnitudes are maxima of integers: atomics give one result in any order.
#include "ops/quantize_part.h"

#include <cuda_fp8.h>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/fp8_tally.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/main_weight.cuh"
#include "backends/cuda/kernels/quantize_tile.cuh"
#include "ops/attributes.h"

namespace braid {
namespace {

using quantize_tile::exponent_of;
using quantize_tile::factor_of;

constexpr int kThreads = 256;
constexpr int kChunk = 8;           // elements
constexpr int kChunksOfThread = 4;  // a warp's chunks lie one behind the other

struct PartArgs {
  const void* x = nullptr;  // [count] bf16 or, of main weights, f32
  int64_t count = 0;
  int64_t begin = 0;  // of x in the weight
  int64_t columns = 0;
  int64_t block = 0;                    // 0: one for all
  int64_t blocks_along = 1;             // of a row
  int* magnitudes = nullptr;            // by block
  uint8_t* part = nullptr;              // [count]
  unsigned long long* tally = nullptr;  // [Fp8Tally::kSize], if the kernel counts
};

__device__ int64_t block_at(const PartArgs& args, int64_t elem) {
  if (args.block == 0) {
    return 0;
  }
  const int64_t at = args.begin + elem;
  return at / args.columns / args.block * args.blocks_along + at % args.columns / args.block;
}

__device__ int magnitude_of(Bf16 value) {
  return (__bfloat16_as_ushort(value) & 0x7FFF) << 16;
}

/// One atomic for the chunks of a warp that are in one block.
__device__ void raise_magnitude(const PartArgs& args, int64_t block, int magnitude) {
  const unsigned active = __activemask();
  const unsigned peers = __match_any_sync(active, static_cast<unsigned long long>(block));
  const int most = __reduce_max_sync(peers, magnitude);
  if (static_cast<int>(threadIdx.x % 32) == __ffs(peers) - 1) {
    atomicMax(args.magnitudes + block, most);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    part_magnitudes_kernel(const __grid_constant__ PartArgs args) {
  const auto* const x = static_cast<const T*>(args.x);
  const int64_t first = int64_t{blockIdx.x} * kThreads * kChunksOfThread + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kChunksOfThread; ++i) {
    const int64_t elem = (first + int64_t{i} * kThreads) * kChunk;
    if (elem >= args.count) {
      break;
    }
    const auto values = as_bf16(load_vector<kChunk, true>(x + elem, kChunk));
    int most = 0;
#pragma unroll
    for (const Bf16 value : values.elems) {
      most = max(most, magnitude_of(value));
    }
    raise_magnitude(args, block_at(args, elem), most);
  }
}

constexpr int kChunksOfOne = 16;  // of a thread, where one magnitude is wanted

/// The largest of all: one atomic for each block of threads. More of them on one address would take
/// longer than reading x.
template <class T>
__global__ void __launch_bounds__(kThreads)
    one_magnitude_kernel(const __grid_constant__ PartArgs args) {
  const auto* const x = static_cast<const T*>(args.x);
  const int64_t first = int64_t{blockIdx.x} * kThreads * kChunksOfOne + threadIdx.x;
  int most = 0;
#pragma unroll 4
  for (int i = 0; i < kChunksOfOne; ++i) {
    const int64_t elem = (first + int64_t{i} * kThreads) * kChunk;
    if (elem < args.count) {
      const auto values = as_bf16(load_vector<kChunk, true>(x + elem, kChunk));
#pragma unroll
      for (const Bf16 value : values.elems) {
        most = max(most, magnitude_of(value));
      }
    }
  }
  __shared__ int shared[kThreads / 32];
  most = __reduce_max_sync(~0U, most);
  if (threadIdx.x % 32 == 0) {
    shared[threadIdx.x / 32] = most;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (const int of_warp : shared) {
      most = max(most, of_warp);
    }
    atomicMax(args.magnitudes, most);
  }
}

/// Of any sizes, one element per thread.
template <class T>
__global__ void __launch_bounds__(kThreads)
    any_part_magnitudes_kernel(const __grid_constant__ PartArgs args) {
  const int64_t elem = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (elem < args.count) {
    const T value = static_cast<const T*>(args.x)[elem];
    raise_magnitude(args, block_at(args, elem), magnitude_of(as_bf16(value)));
  }
}

__device__ float factor_at(const PartArgs& args, int64_t elem) {
  const int magnitude = args.magnitudes[block_at(args, elem)];
  return factor_of(exponent_of(static_cast<uint32_t>(magnitude), __NV_E4M3));
}

template <bool kWatch>
__device__ uint8_t rounded(Bf16 value, float factor, Fp8Counter<kWatch>& losses) {
  const float x = __bfloat162float(value);
  const uint8_t copy = __nv_cvt_float_to_fp8(x * factor, __NV_SATFINITE, __NV_E4M3);
  losses.add(x, x * factor, copy, quantize_tile::largest_of(__NV_E4M3));
  if constexpr (kWatch) {
    losses.largest = max(losses.largest, static_cast<uint32_t>(magnitude_of(value)));
  }
  return copy;
}

template <bool kWatch>
__device__ void add_to_tally(const PartArgs& args, const Fp8Counter<kWatch>& losses) {
  if constexpr (kWatch) {
    __shared__ uint32_t shared[kThreads / 32];
    losses.add_to(args.tally, shared, args.count);
  }
}

template <class T, bool kWatch>
__global__ void __launch_bounds__(kThreads)
    quantize_part_kernel(const __grid_constant__ PartArgs args) {
  const int64_t elem = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kChunk;
  Fp8Counter<kWatch> losses;
  if (elem < args.count) {
    const float factor = factor_at(args, elem);
    const auto values =
        as_bf16(load_vector<kChunk, true>(static_cast<const T*>(args.x) + elem, kChunk));
    DeviceVector<uint8_t, kChunk> bytes;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      bytes.elems[i] = rounded(values.elems[i], factor, losses);
    }
    store_vector<true>(args.part + elem, bytes, kChunk);
  }
  add_to_tally(args, losses);
}

/// Of any sizes, one element per thread.
template <class T, bool kWatch>
__global__ void __launch_bounds__(kThreads)
    quantize_any_part_kernel(const __grid_constant__ PartArgs args) {
  const int64_t elem = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  Fp8Counter<kWatch> losses;
  if (elem < args.count) {
    const Bf16 value = as_bf16(static_cast<const T*>(args.x)[elem]);
    args.part[elem] = rounded(value, factor_at(args, elem), losses);
  }
  add_to_tally(args, losses);
}

/// Whether chunks lie in one row and one block, and are aligned.
bool has_whole_chunks(const PartArgs& args) {
  return args.columns % kChunk == 0 && args.begin % kChunk == 0 && args.count % kChunk == 0 &&
         all_aligned(16, {args.x}) && all_aligned(8, {args.part});
}

template <class T>
void launch_magnitudes(const PartArgs& args, cudaStream_t stream) {
  if (has_whole_chunks(args)) {
    const auto grid = [&](int chunks) {
      return grid_of(ceil_div(args.count, int64_t{kThreads} * kChunk * chunks));
    };
    if (args.block == 0) {
      one_magnitude_kernel<T><<<grid(kChunksOfOne), kThreads, 0, stream>>>(args);
    } else {
      part_magnitudes_kernel<T><<<grid(kChunksOfThread), kThreads, 0, stream>>>(args);
    }
  } else {
    const unsigned grid = grid_of(ceil_div(args.count, kThreads));
    any_part_magnitudes_kernel<T><<<grid, kThreads, 0, stream>>>(args);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <class T, bool kWatch>
void launch_part(const PartArgs& args, cudaStream_t stream) {
  if (has_whole_chunks(args)) {
    const unsigned grid = grid_of(ceil_div(args.count, int64_t{kThreads} * kChunk));
    quantize_part_kernel<T, kWatch><<<grid, kThreads, 0, stream>>>(args);
  } else {
    const unsigned grid = grid_of(ceil_div(args.count, kThreads));
    quantize_any_part_kernel<T, kWatch><<<grid, kThreads, 0, stream>>>(args);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

using Launch = void (*)(const PartArgs&, cudaStream_t);

Launch part_launch(bool main_weights, bool watch) {
  if (main_weights) {
    return watch ? launch_part<float, true> : launch_part<float, false>;
  }
  return watch ? launch_part<Bf16, true> : launch_part<Bf16, false>;
}

bool are_main_weights(const OpSpec& spec) {
  return attributes_of<QuantizePartAttributes>(spec).rounds.main_weights;
}

PartArgs part_args(const OpSpec& spec) {
  check(spec.operands[0].dtype == DType::kBF16 || are_main_weights(spec),
        "op {}: no CUDA kernel for {}", spec.op, dtype_name(spec.operands[0].dtype));
  const auto attributes = attributes_of<QuantizePartAttributes>(spec);
  return {.count = spec.operands[0].shape[0],
          .begin = attributes.begin,
          .columns = attributes.columns,
          .block = attributes.block,
          .blocks_along = spec.operands[1].shape[1]};
}

/// The scales of one copy.
struct ScaleArgs {
  const uint32_t* magnitudes = nullptr;  // [rows, along], or [along, rows] if transposed
  void* scales = nullptr;  // f32 [rows, padded]; or of squares of 32, e8m0 [along, padded]
  int64_t rows = 0;        // of blocks of the copy
  int64_t along = 0;
  int64_t padded = 0;
  bool transposed = false;

  __device__ int exponent(int64_t i, int64_t k) const {
    return exponent_of(magnitudes[transposed ? k * rows + i : i * along + k], __NV_E4M3);
  }
};

__global__ void __launch_bounds__(kThreads)
    scales_of_magnitudes_kernel(const __grid_constant__ ScaleArgs args) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= args.rows * args.padded) {
    return;
  }
  auto* const scales = static_cast<float*>(args.scales);
  const int64_t i = at / args.padded;
  const int64_t k = at % args.padded;
  if (k >= args.along) {
    scales[at] = 0.0f;
    return;
  }
  scales[at] = __uint_as_float(Fp8Scale::float_bits(args.exponent(i, k)));
}

/// Of squares of 32: each row of the copy has the scale of its square.
__global__ void __launch_bounds__(kThreads)
    row_scales_of_magnitudes_kernel(const __grid_constant__ ScaleArgs args) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at < args.along * args.padded) {
    static_cast<uint8_t*>(args.scales)[at] = Fp8Scale::to_e8m0(
        args.exponent(at % args.padded / quantize_tile::kSmallSquare, at / args.padded));
  }
}

void launch_scales(const ScaleArgs& args, bool has_rows, cudaStream_t stream) {
  const unsigned grid =
      grid_of(ceil_div((has_rows ? args.along : args.rows) * args.padded, kThreads));
  if (has_rows) {
    row_scales_of_magnitudes_kernel<<<grid, kThreads, 0, stream>>>(args);
  } else {
    scales_of_magnitudes_kernel<<<grid, kThreads, 0, stream>>>(args);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

CudaKernel make_cuda_part_magnitudes(const OpSpec& spec, CudaContext& /*context*/) {
  return {.launch = [known = part_args(spec),
                     launch = are_main_weights(spec) ? launch_magnitudes<float>
                                                     : launch_magnitudes<Bf16>,
                     bytes = static_cast<size_t>(spec.operands[1].shape.num_elems()) *
                             sizeof(int32_t)](const CudaKernelArgs& args) {
    PartArgs part = known;
    part.x = args.operands[0];
    part.magnitudes = args.data<int>(1);
    BRAID_CUDA_CHECK(cudaMemsetAsync(part.magnitudes, 0, bytes, args.stream));
    if (part.count > 0) {
      launch(part, args.stream);
    }
  }};
}

CudaKernel make_cuda_quantize_part(const OpSpec& spec, CudaContext& /*context*/) {
  return {.launch = [known = part_args(spec), watch = has_tally(spec),
                     launch = part_launch(are_main_weights(spec), has_tally(spec))](
                        const CudaKernelArgs& args) {
    PartArgs part = known;
    part.x = args.operands[0];
    part.magnitudes = args.data<int>(1);
    part.part = args.data<uint8_t>(2);
    part.tally = watch ? args.data<unsigned long long>(3) : nullptr;
    if (part.count > 0) {
      launch(part, args.stream);
    }
  }};
}

CudaKernel make_cuda_scales_of_magnitudes(const OpSpec& spec, CudaContext& /*context*/) {
  const Shape& blocks = spec.operands[0].shape;
  const bool has_rows = attributes_of<MagnitudeScalesAttributes>(spec).block == 32;
  const auto padded = [&](size_t operand, int64_t rows) {
    const Shape& shape = spec.operands[operand].shape;
    return has_rows ? shape[1] : shape.num_elems() / rows;
  };
  ScaleArgs row{.rows = blocks[0], .along = blocks[1]};
  row.padded = padded(1, row.rows);
  ScaleArgs column{.rows = blocks[1], .along = blocks[0], .transposed = true};
  const bool has_column = spec.operands.size() > 2;
  column.padded = has_column ? padded(2, column.rows) : 0;
  return {.launch = [=](const CudaKernelArgs& args) {
    const auto launch = [&](ScaleArgs copy, size_t operand) {
      copy.magnitudes = args.data<const uint32_t>(0);
      copy.scales = args.operands[operand];
      launch_scales(copy, has_rows, args.stream);
    };
    launch(row, 1);
    if (has_column) {
      launch(column, 2);
    }
  }};
}

}  // namespace braid
