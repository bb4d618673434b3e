#include "ops/blocks.h"

#include <cstdint>
#include <limits>
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
struct BlocksArgs {
  const T* blocks[kMaxBlocks] = {};  // [count] each
  T* result = nullptr;               // [count]; different from the blocks
  int num_blocks = 0;
  int64_t count = 0;
};

template <class T>
BlocksArgs<T> blocks_args(const CudaKernelArgs& args, int num_blocks, int64_t count) {
  BlocksArgs<T> blocks{.result = args.data<T>(static_cast<size_t>(num_blocks)),
                       .num_blocks = num_blocks,
                       .count = count};
  for (int block = 0; block < num_blocks; ++block) {
    blocks.blocks[block] = args.data<const T>(static_cast<size_t>(block));
  }
  return blocks;
}

/// The type of the sums of blocks: f64 for f64, otherwise f32.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// One vector of 16 bytes per thread: the blocks' loads do not depend on each other, so there is
/// one load in flight per block.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads)
    sum_blocks_kernel(const __grid_constant__ BlocksArgs<T> args) {
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
  store_vector<kAligned>(args.result + at, rounded, args.count - at);
}

template <class T>
void launch_sum(const CudaKernelArgs& args, int num_blocks, int64_t count) {
  constexpr int V = kVectorElems<T>;
  const unsigned grid = grid_of(ceil_div(count, int64_t{V} * kThreads));
  if (grid == 0) {
    return;
  }
  const BlocksArgs<T> sum = blocks_args<T>(args, num_blocks, count);
  bool aligned = count % V == 0 && all_aligned(16, {sum.result});
  for (int block = 0; block < num_blocks; ++block) {
    aligned = aligned && all_aligned(16, {sum.blocks[block]});
  }
  if (aligned) {
    sum_blocks_kernel<true><<<grid, kThreads, 0, args.stream>>>(sum);
  } else {
    sum_blocks_kernel<false><<<grid, kThreads, 0, args.stream>>>(sum);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

__global__ void __launch_bounds__(kThreads)
    largest_of_blocks_kernel(const __grid_constant__ BlocksArgs<int32_t> args) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= args.count) {
    return;
  }
  int32_t largest = args.blocks[0][at];
#pragma unroll 8
  for (int block = 1; block < args.num_blocks; ++block) {
    largest = max(largest, args.blocks[block][at]);
  }
  args.result[at] = largest;
}

/// y [rows, blocks, width] from x [blocks, rows, width], in words. Index: of a word.
template <class Word, class Index>
struct JoinArgs {
  const Word* x = nullptr;
  Word* y = nullptr;
  Index rows = 0;
  Index blocks = 0;
  Index width = 0;
  Index words = 0;
};

constexpr int kJoinLoads = 4;  // in flight per thread

/// Threads follow y. One launch: as a strided copy for each block, a join of the columns of 8 ranks
/// (32 MiB) took 68 us in a step on an H200, a quarter of the memory's rate, and the copies held up
/// those of communication.
template <class Word, class Index>
__global__ void __launch_bounds__(kThreads)
    join_blocks_kernel(const __grid_constant__ JoinArgs<Word, Index> args) {
  const Index first = Index{blockIdx.x} * (kThreads * kJoinLoads) + threadIdx.x;
  Word words[kJoinLoads];
#pragma unroll
  for (int load = 0; load < kJoinLoads; ++load) {
    const Index at = first + static_cast<Index>(load * kThreads);
    if (at < args.words) {
      const Index piece = at / args.width;
      const Index row = piece / args.blocks;
      const Index block = piece - row * args.blocks;
      words[load] = args.x[(block * args.rows + row - piece) * args.width + at];
    }
  }
#pragma unroll
  for (int load = 0; load < kJoinLoads; ++load) {
    const Index at = first + static_cast<Index>(load * kThreads);
    if (at < args.words) {
      args.y[at] = words[load];
    }
  }
}

template <class Word, class Index>
void launch_join_of(const CudaKernelArgs& args, int64_t rows, int64_t blocks, int64_t width) {
  const int64_t words = rows * blocks * width;
  const unsigned grid = grid_of(ceil_div(words, int64_t{kThreads} * kJoinLoads));
  if (grid == 0) {
    return;
  }
  join_blocks_kernel<<<grid, kThreads, 0, args.stream>>>(
      JoinArgs<Word, Index>{.x = args.data<const Word>(0),
                            .y = args.data<Word>(1),
                            .rows = static_cast<Index>(rows),
                            .blocks = static_cast<Index>(blocks),
                            .width = static_cast<Index>(width),
                            .words = static_cast<Index>(words)});
  BRAID_CUDA_CHECK(cudaGetLastError());
}

/// `width`: bytes of a row of a block, a multiple of those of a word.
template <class Word>
void launch_join(const CudaKernelArgs& args, int64_t rows, int64_t blocks, int64_t width) {
  const int64_t words = width / static_cast<int64_t>(sizeof(Word));
  const bool is_small = rows * blocks * words < std::numeric_limits<int32_t>::max();
  const auto launch = is_small ? launch_join_of<Word, uint32_t> : launch_join_of<Word, uint64_t>;
  launch(args, rows, blocks, words);
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

CudaKernel make_cuda_largest_of_blocks(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const int num_blocks = static_cast<int>(spec.operands.size()) - 1;
  return {.launch = [=](const CudaKernelArgs& args) {
    if (const unsigned grid = grid_of(ceil_div(count, int64_t{kThreads})); grid > 0) {
      largest_of_blocks_kernel<<<grid, kThreads, 0, args.stream>>>(
          blocks_args<int32_t>(args, num_blocks, count));
      BRAID_CUDA_CHECK(cudaGetLastError());
    }
  }};
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
  const int64_t width =
      spec.operands[0].shape[1] * static_cast<int64_t>(dtype_bytes(spec.operands[0].dtype));
  const int64_t rows = spec.operands[1].shape[0];
  const int64_t blocks = spec.operands[0].shape[0] / rows;
  return {.launch = [=](const CudaKernelArgs& args) {
    const auto fits = [&](size_t bytes) {
      return width % static_cast<int64_t>(bytes) == 0 &&
             all_aligned(bytes, {args.operands[0], args.operands[1]});
    };
    if (fits(sizeof(uint4))) {
      launch_join<uint4>(args, rows, blocks, width);
    } else if (fits(sizeof(uint32_t))) {
      launch_join<uint32_t>(args, rows, blocks, width);
    } else {
      launch_join<uint8_t>(args, rows, blocks, width);
    }
  }};
}

}  // namespace braid
