#include "backends/cuda/kernels/widen_columns.h"

#include <cuda_fp8.h>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/quantize_grouped.cuh"

namespace braid {
namespace {

constexpr int kBlock = static_cast<int>(GroupedColumns::kBlock);
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kLaneElems = kBlock / 32;
constexpr int kPitch = kBlock + 2;  // elements; an odd number of words

/// Where the scale of a feature is for a block of columns: feature / block * stride + block * step.
struct FeatureScales {
  int64_t features = 1;  ///< that share one
  int64_t stride = 1;
  int64_t step = 1;
};

struct WidenArgs {
  const uint8_t* data = nullptr;
  const float* scales = nullptr;
  __nv_fp8_interpretation_t format = __NV_E4M3;
  FeatureScales places;
  int64_t features = 0;
  int64_t columns = 0;
  const int32_t* offsets = nullptr;
  int num_experts = 0;
  Bf16* to = nullptr;
};

/// A block of threads turns a tile of 128 x 128 round in shared memory.
__global__ void __launch_bounds__(kThreads) widen_columns_kernel(WidenArgs args) {
  __shared__ Bf16 tile[kBlock * kPitch];
  const int64_t tiles = args.features / kBlock;
  const int64_t block = blockIdx.x / tiles;
  const int64_t first_feature = blockIdx.x % tiles * kBlock;
  const ColumnBlockRows rows = args.offsets == nullptr
                                   ? ColumnBlockRows{.first = block * kBlock, .count = kBlock}
                                   : rows_of_block(args.offsets, args.num_experts, block);
  if (rows.count == 0) {
    return;
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int f = warp; f < kBlock; f += kWarps) {
    const int64_t feature = first_feature + f;
    const uint32_t bytes = *reinterpret_cast<const uint32_t*>(args.data + feature * args.columns +
                                                              block * kBlock + lane * kLaneElems);
    const float scale =
        args.scales[feature / args.places.features * args.places.stride + block * args.places.step];
#pragma unroll
    for (int j = 0; j < kLaneElems; ++j) {
      const auto elem = static_cast<__nv_fp8_storage_t>(bytes >> (8 * j) & 0xFFu);
      const float value = __half2float(__half(__nv_cvt_fp8_to_halfraw(elem, args.format)));
      tile[(lane * kLaneElems + j) * kPitch + f] = __float2bfloat16_rn(value * scale);
    }
  }
  __syncthreads();
  for (int r = warp; r < rows.count; r += kWarps) {
    DeviceVector<Bf16, kLaneElems> vector;
#pragma unroll
    for (int j = 0; j < kLaneElems; ++j) {
      vector.elems[j] = tile[r * kPitch + lane * kLaneElems + j];
    }
    store_vector<true>(
        args.to + (rows.first + r) * args.features + first_feature + lane * kLaneElems, vector,
        kLaneElems);
  }
}

FeatureScales places_of(const WidenColumnsArgs& args) {
  if (!args.square) {
    return {.step = args.features};
  }
  const ScaleLayout layout{.block = kBlock, .square = true};
  return {.features = kBlock, .stride = layout.shape({args.features, args.columns})[1]};
}

}  // namespace

void widen_columns(const WidenColumnsArgs& args, cudaStream_t stream) {
  const WidenArgs all{.data = static_cast<const uint8_t*>(args.data),
                      .scales = args.scales,
                      .format = args.format == DType::kF8E5M2 ? __NV_E5M2 : __NV_E4M3,
                      .places = places_of(args),
                      .features = args.features,
                      .columns = args.columns,
                      .offsets = args.offsets,
                      .num_experts = args.num_experts,
                      .to = static_cast<Bf16*>(args.to)};
  const int64_t blocks = args.columns / kBlock * (args.features / kBlock);
  widen_columns_kernel<<<grid_of(blocks), kThreads, 0, stream>>>(all);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace braid
