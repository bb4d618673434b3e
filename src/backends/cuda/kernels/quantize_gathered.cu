// Rows are read where they lie, so a token that several experts have comes from the cache all but
// once, and is rounded for each of them: that costs less than writing it and reading it again.
#include "ops/quantize_gathered.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/quantize_tile.cuh"
#include "ops/attributes.h"
#include "ops/quantize_grouped.h"

namespace braid {
namespace {

using namespace quantize_tile;

constexpr int kMaxThreads = 256;
constexpr int kUnroll = 4;
constexpr int kLanes = kTile / kVector;  // of elements with one scale
static_assert(kTile == GroupedColumns::kBlock);

struct GatheredArgs {
  const Bf16* x = nullptr;               // [T, width]
  const int32_t* pair_of = nullptr;      // [rows]
  const int32_t* end_of_rows = nullptr;  // rows from there on are nobody's; null: there are none
  uint8_t* y = nullptr;                  // [rows, width]
  float* scales = nullptr;               // [rows, width / 128]
  __nv_fp8_interpretation_t format = __NV_E4M3;
  unsigned long long* tally = nullptr;
  int64_t rows = 0;
  int64_t width = 0;  // a multiple of 128
  int num_pairs = 0;  // rows of pairs from there on are nobody's
  int per_token = 1;
  bool is_partial = false;  // there are such rows
  unsigned chunks = 1;      // blocks of a row

  __device__ bool is_rounded(int64_t row) const {
    return (end_of_rows == nullptr || row < *end_of_rows) && pair_of[row] < num_pairs;
  }
  /// Of the rows that the first block counts; of partial maps each row's first block counts its
  /// own.
  __device__ int64_t num_rounded() const {
    return is_partial ? 0 : (end_of_rows == nullptr ? rows : *end_of_rows) * width;
  }
};

/// Eight elements of a row from column c on. All lanes take part; those behind the row with zeros.
template <bool kWatch>
__device__ void round_chunk(const GatheredArgs& args, int64_t row, int64_t c, const uint4& chunk,
                            Fp8Counter<kWatch>& losses) {
  const uint32_t own = max_of_chunk(chunk);
  const uint32_t bits = larger_bits(lanes_max<kLanes>(own));
  if (c >= args.width) {
    return;
  }
  if constexpr (kWatch) {
    losses.largest = max(losses.largest, larger_bits(own));
  }
  const int exponent = exponent_of(bits, args.format);
  if (c % kTile == 0) {
    args.scales[row * (args.width / kTile) + c / kTile] =
        __uint_as_float(Fp8Scale::float_bits(exponent));
  }
  const float factor = factor_of(exponent);
  const uint32_t pairs[kVector / 2] = {chunk.x, chunk.y, chunk.z, chunk.w};
  uint32_t words[kVector / 4];
#pragma unroll
  for (int word = 0; word < kVector / 4; ++word) {
    const uint32_t first = pairs[2 * word];
    const uint32_t second = pairs[2 * word + 1];
    words[word] = rounded(low_of(first), high_of(first), factor, args.format, losses) |
                  rounded(low_of(second), high_of(second), factor, args.format, losses) << 16;
  }
  DeviceVector<uint8_t, kVector> vector;
  memcpy(vector.elems, words, sizeof(vector));
  store_vector<true>(args.y + row * args.width + c, vector, kVector);
}

template <bool kWatch>
__global__ void __launch_bounds__(kMaxThreads) quantize_gathered_kernel(GatheredArgs args) {
  __shared__ uint32_t shared[kMaxThreads / 32];
  const int64_t row = blockIdx.x / args.chunks;
  Fp8Counter<kWatch> losses;
  if (args.is_rounded(row)) {
    const int64_t stride = int64_t{blockDim.x} * kVector;
    const int64_t first =
        int64_t{blockIdx.x % args.chunks} * kUnroll * stride + threadIdx.x * kVector;
    const Bf16* const from = args.x + int64_t{args.pair_of[row] / args.per_token} * args.width;
    uint4 chunks[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t c = first + u * stride;
      chunks[u] = c < args.width ? *reinterpret_cast<const uint4*>(from + c) : uint4{};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      round_chunk(args, row, first + u * stride, chunks[u], losses);
    }
  }
  losses.add_to(args.tally, shared, args.num_rounded());
  if constexpr (kWatch) {
    if (args.is_partial && threadIdx.x == 0 && blockIdx.x % args.chunks == 0 &&
        args.is_rounded(row)) {
      atomicAdd(args.tally + Fp8Tally::kElems, static_cast<unsigned long long>(args.width));
    }
  }
}

}  // namespace

CudaKernel make_cuda_quantize_gathered(const OpSpec& spec, CudaContext& /*context*/) {
  const OperandSpec& x = spec.operands[0];
  check(x.dtype == DType::kBF16 && x.shape[1] % kTile == 0, "op {}: no CUDA kernel for {} {}",
        spec.op, dtype_name(x.dtype), to_string(x.shape));
  const auto attributes = attributes_of<QuantizeGatheredAttributes>(spec);
  const QuantizeGatheredOperands at(attributes);
  const auto operand = [](int place) { return static_cast<size_t>(place); };
  const RowChunks chunks(x.shape[1] / kVector, kUnroll, kMaxThreads);
  const int64_t num_experts = at.offsets < 0 ? 0 : spec.operands[operand(at.offsets)].shape[0] - 1;
  const GatheredArgs sizes{
      .format = spec.operands[operand(at.y)].dtype == DType::kF8E5M2 ? __NV_E5M2 : __NV_E4M3,
      .rows = spec.operands[1].shape[0],
      .width = x.shape[1],
      .num_pairs = static_cast<int>(spec.operands[2].shape.num_elems()),
      .per_token = static_cast<int>(spec.operands[2].shape[1]),
      .is_partial = attributes.partial.are_partial(),
      .chunks = chunks.chunks};
  const unsigned grid = grid_of(sizes.rows * chunks.chunks);
  return {.launch = [=](const CudaKernelArgs& args) {
    GatheredArgs all = sizes;
    all.x = args.data<const Bf16>(0);
    all.pair_of = args.data<const int32_t>(1);
    all.end_of_rows =
        at.offsets < 0 ? nullptr : args.data<const int32_t>(operand(at.offsets)) + num_experts;
    all.y = args.data<uint8_t>(operand(at.y));
    all.scales = args.data<float>(operand(at.y + 1));
    all.tally = at.tally < 0 ? nullptr : args.data<unsigned long long>(operand(at.tally));
    const auto kernel =
        all.tally == nullptr ? quantize_gathered_kernel<false> : quantize_gathered_kernel<true>;
    kernel<<<grid, chunks.threads, 0, args.stream>>>(all);
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace braid
