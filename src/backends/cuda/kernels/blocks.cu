#include "ops/blocks.h"

#include <type_traits>
#include <vector>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"

namespace braid {
namespace {

constexpr int kThreads = 256;

template <class T>
struct SumArgs {
  const T* blocks[kMaxBlocks] = {};  // [count] each
  T* sum = nullptr;                  // [count]; different from the blocks
  int num_blocks = 0;
  int64_t count = 0;
};

/// The type of the sums of blocks: f64 for f64, otherwise f32.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// One vector of 16 bytes per thread: the blocks' loads do not depend on each other, so there is
/// one load in flight per block.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads)
    sum_blocks_kernel(const __grid_constant__ SumArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (at >= args.count) {
    return;
  }
  Sum<T> sums[V];
  const auto first = load_vector<V, kAligned>(args.blocks[0] + at, args.count - at);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sums[i] = widen(first.elems[i]);
  }
#pragma unroll 8
  for (int block = 1; block < args.num_blocks; ++block) {
    const auto next = load_vector<V, kAligned>(args.blocks[block] + at, args.count - at);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sums[i] += widen(next.elems[i]);
    }
  }
  DeviceVector<T, V> rounded;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    rounded.elems[i] = narrow<T>(sums[i]);
  }
  store_vector<kAligned>(args.sum + at, rounded, args.count - at);
}

template <class T>
void launch_sum(const CudaKernelArgs& args, int num_blocks, int64_t count) {
  constexpr int V = kVectorElems<T>;
  const unsigned grid = grid_of(ceil_div(count, int64_t{V} * kThreads));
  if (grid == 0) {
    return;
  }
  SumArgs<T> sum{.sum = args.data<T>(static_cast<size_t>(num_blocks)),
                 .num_blocks = num_blocks,
                 .count = count};
  bool aligned = count % V == 0 && all_aligned(16, {sum.sum});
  for (int block = 0; block < num_blocks; ++block) {
    sum.blocks[block] = args.data<const T>(static_cast<size_t>(block));
    aligned = aligned && all_aligned(16, {sum.blocks[block]});
  }
  if (aligned) {
    sum_blocks_kernel<true><<<grid, kThreads, 0, args.stream>>>(sum);
  } else {
    sum_blocks_kernel<false><<<grid, kThreads, 0, args.stream>>>(sum);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

CudaKernel make_cuda_sum_blocks(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const int num_blocks = static_cast<int>(spec.operands.size()) - 1;
  const auto make = [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) { launch_sum<T>(args, num_blocks, count); }};
  };
  return spec.operands[0].dtype == DType::kF64 ? make.template operator()<double>()
                                               : dispatch_cuda_dtype(spec, 0, make);
}

// A copy of rows with two strides is one graph node, and allows any alignment.
CudaKernel make_cuda_join_columns(const OpSpec& spec, CudaContext& /*context*/) {
  const size_t elem_bytes = dtype_bytes(spec.operands[0].dtype);
  const auto rows = static_cast<size_t>(spec.operands[0].shape[0]);
  std::vector<size_t> widths;  // in bytes; y is last
  for (const OperandSpec& operand : spec.operands) {
    widths.push_back(static_cast<size_t>(operand.shape[1]) * elem_bytes);
  }
  return {.launch = [rows, widths](const CudaKernelArgs& args) {
    std::byte* to = args.operands[widths.size() - 1];
    for (size_t block = 0; block + 1 < widths.size(); ++block) {
      if (rows > 0 && widths[block] > 0) {
        BRAID_CUDA_CHECK(cudaMemcpy2DAsync(to, widths.back(), args.operands[block], widths[block],
                                           widths[block], rows, cudaMemcpyDeviceToDevice,
                                           args.stream));
      }
      to += widths[block];
    }
  }};
}

CudaKernel make_cuda_join_blocks(const OpSpec& spec, CudaContext& /*context*/) {
  const size_t width =
      static_cast<size_t>(spec.operands[0].shape[1]) * dtype_bytes(spec.operands[0].dtype);
  const auto rows = static_cast<size_t>(spec.operands[1].shape[0]);
  const size_t blocks = static_cast<size_t>(spec.operands[0].shape[0]) / rows;
  // Copies one block of all rows, or all blocks of one row: whichever takes fewer calls.
  return {.launch = [=](const CudaKernelArgs& args) {
    for (size_t block = 0; block < blocks && blocks <= rows && width > 0; ++block) {
      BRAID_CUDA_CHECK(cudaMemcpy2DAsync(args.operands[1] + block * width, blocks * width,
                                         args.operands[0] + block * rows * width, width, width,
                                         rows, cudaMemcpyDeviceToDevice, args.stream));
    }
    for (size_t row = 0; row < rows && rows < blocks && width > 0; ++row) {
      BRAID_CUDA_CHECK(cudaMemcpy2DAsync(args.operands[1] + row * blocks * width, width,
                                         args.operands[0] + row * width, rows * width, width,
                                         blocks, cudaMemcpyDeviceToDevice, args.stream));
    }
  }};
}

}  // namespace braid
