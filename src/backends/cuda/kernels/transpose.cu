// A block of threads transposes a tile of 128 x 128 bytes. Each thread loads four words of four
// rows, turns each 4 x 4 bytes in registers, and puts them into shared memory as words of the
// result, from which whole rows of 128 bytes are written.
#include "ops/transpose.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"

namespace braid {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 128;
constexpr int kWords = kTile / 4;  // of a row of the tile
constexpr int kRowStep = kThreads / kWords;

struct TransposeArgs {
  const uint8_t* x = nullptr;  // [rows, columns]
  uint8_t* y = nullptr;        // [columns, rows]
  int64_t rows = 0;
  int64_t columns = 0;
};

/// Byte j of word i becomes byte i of word j.
__device__ void transpose_bytes(uint32_t (&words)[4]) {
  const uint32_t low01 = __byte_perm(words[0], words[1], 0x5140);
  const uint32_t low23 = __byte_perm(words[2], words[3], 0x5140);
  const uint32_t high01 = __byte_perm(words[0], words[1], 0x7362);
  const uint32_t high23 = __byte_perm(words[2], words[3], 0x7362);
  words[0] = __byte_perm(low01, low23, 0x5410);
  words[1] = __byte_perm(low01, low23, 0x7632);
  words[2] = __byte_perm(high01, high23, 0x5410);
  words[3] = __byte_perm(high01, high23, 0x7632);
}

/// rows and columns are multiples of 4, and x and y of 4 bytes.
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const __grid_constant__ TransposeArgs args) {
  __shared__ uint32_t tile[kTile][kWords + 1];  // [column][four rows]
  const int64_t tiles_along = (args.columns + kTile - 1) / kTile;
  const int64_t row = blockIdx.x / tiles_along * kTile;
  const int64_t column = blockIdx.x % tiles_along * kTile;
  const int word = static_cast<int>(threadIdx.x) % kWords;
  const int step = static_cast<int>(threadIdx.x) / kWords;
#pragma unroll
  for (int group = step; group < kWords; group += kRowStep) {
    const int64_t at = row + 4 * group;
    if (at < args.rows && column + 4 * word < args.columns) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = *reinterpret_cast<const uint32_t*>(args.x + (at + i) * args.columns + column +
                                                      4 * word);
      }
      transpose_bytes(words);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        tile[4 * word + i][group] = words[i];
      }
    }
  }
  __syncthreads();
#pragma unroll 4
  for (int i = step; i < kTile; i += kRowStep) {
    if (column + i < args.columns && row + 4 * word < args.rows) {
      *reinterpret_cast<uint32_t*>(args.y + (column + i) * args.rows + row + 4 * word) =
          tile[i][word];
    }
  }
}

/// Any sizes, byte by byte.
__global__ void __launch_bounds__(kThreads)
    transpose_any_kernel(const __grid_constant__ TransposeArgs args) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at < args.rows * args.columns) {
    args.y[at] = args.x[at % args.rows * args.columns + at / args.rows];
  }
}

void launch(const TransposeArgs& args, cudaStream_t stream) {
  if (args.rows % 4 == 0 && args.columns % 4 == 0 && all_aligned(4, {args.x, args.y})) {
    const unsigned grid = grid_of(ceil_div(args.rows, kTile) * ceil_div(args.columns, kTile));
    transpose_kernel<<<grid, kThreads, 0, stream>>>(args);
  } else {
    const unsigned grid = grid_of(ceil_div(args.rows * args.columns, kThreads));
    transpose_any_kernel<<<grid, kThreads, 0, stream>>>(args);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

CudaKernel make_cuda_transpose(const OpSpec& spec, CudaContext& /*context*/) {
  return {.launch = [shape = spec.operands[0].shape](const CudaKernelArgs& args) {
    if (shape.num_elems() > 0) {
      launch({.x = args.data<const uint8_t>(0),
              .y = args.data<uint8_t>(1),
              .rows = shape[0],
              .columns = shape[1]},
             args.stream);
    }
  }};
}

}  // namespace braid
