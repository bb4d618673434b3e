#include "backends/cuda/kernels/dequantize.h"

#include <cuda_fp8.h>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"
#include "base/float8.h"

namespace braid {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 16;  // elements of a thread, which share a scale

/// Where the scale of an element is: at row / row_block * row_stride + column / run * run_stride.
struct ScalePlaces {
  int64_t row_block = 1;
  int64_t row_stride = 0;
  int64_t run = 1;
  int64_t run_stride = 0;
};

ScalePlaces places_of(const DequantizeArgs& args) {
  if (args.layout.block == 0) {
    return {};
  }
  const int64_t stride = args.layout.shape({args.rows, args.depth})[1];
  if (args.layout.square) {
    return {.row_block = args.layout.block,
            .row_stride = stride,
            .run = args.layout.block,
            .run_stride = 1};
  }
  return {.row_stride = 1, .run = args.layout.block, .run_stride = stride};
}

__device__ float to_float(float scale) {
  return scale;
}
__device__ float to_float(uint8_t e8m0) {
  return __uint_as_float(Fp8Scale::float_bits(int{e8m0} - 127));
}

template <bool kAligned, class Scale>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const uint8_t* data, const Scale* scales, __nv_fp8_interpretation_t format,
                      ScalePlaces places, int64_t rows, int64_t depth, Bf16* to) {
  const int64_t vectors = (depth + kVector - 1) / kVector;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = thread / vectors;
  const int64_t column = thread % vectors * kVector;
  if (row >= rows) {
    return;
  }
  const int64_t at = row * depth + column;
  const float scale = to_float(
      scales[row / places.row_block * places.row_stride + column / places.run * places.run_stride]);
  const auto elems = load_vector<kVector, kAligned>(data + at, depth - column);
  DeviceVector<Bf16, kVector> widened;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const __half_raw half = __nv_cvt_fp8_to_halfraw(elems.elems[i], format);
    widened.elems[i] = __float2bfloat16_rn(__half2float(__half(half)) * scale);
  }
  store_vector<kAligned>(to + at, widened, depth - column);
}

template <bool kAligned, class Scale>
void launch(const DequantizeArgs& args, cudaStream_t stream) {
  const int64_t threads = args.rows * ceil_div(args.depth, kVector);
  dequantize_kernel<kAligned><<<grid_of(ceil_div(threads, kThreads)), kThreads, 0, stream>>>(
      static_cast<const uint8_t*>(args.data), static_cast<const Scale*>(args.scales),
      args.format == DType::kF8E5M2 ? __NV_E5M2 : __NV_E4M3, places_of(args), args.rows, args.depth,
      static_cast<Bf16*>(args.to));
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void dequantize(const DequantizeArgs& args, cudaStream_t stream) {
  const bool is_aligned = args.depth % kVector == 0 && all_aligned(16, {args.data, args.to});
  const bool has_bytes = args.layout.dtype() == DType::kF8E8M0;
  const auto run = is_aligned ? (has_bytes ? launch<true, uint8_t> : launch<true, float>)
                              : (has_bytes ? launch<false, uint8_t> : launch<false, float>);
  run(args, stream);
}

}  // namespace braid
