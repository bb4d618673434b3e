#include "backends/cuda/kernels/scratch_sizes.h"

#include <algorithm>

namespace braid {
namespace {

constexpr int kWarpSize = 32;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

size_t product_in_scratch_bytes(int64_t rows, int64_t columns, size_t elem_bytes) {
  constexpr int64_t kAlignmentBytes = 256;
  const int64_t bytes = rows * columns * static_cast<int64_t>(elem_bytes);
  return static_cast<size_t>(ceil_div(bytes, kAlignmentBytes) * kAlignmentBytes);
}

size_t wide_result_bytes(const OperandSpec& narrow) {
  return product_in_scratch_bytes(narrow.shape.num_elems(), 1, sizeof(float));
}

int64_t bias_grad_chunks(int64_t rows, int64_t columns) {
  constexpr int64_t kNarrowestTile = 256;  // columns: 32 lanes of 8
  constexpr int64_t kTargetBlocks = 1056;  // 8 blocks of 256 threads fill each of 132 processors
  constexpr int64_t kMinRowsPerChunk = 32;
  const int64_t tiles = ceil_div(columns, kNarrowestTile);
  const int64_t wanted = std::max<int64_t>(1, kTargetBlocks / tiles);
  return std::clamp<int64_t>(ceil_div(rows, kMinRowsPerChunk), 1, wanted);
}

size_t bias_grad_scratch_bytes(int64_t rows, int64_t columns) {
  return static_cast<size_t>(bias_grad_chunks(rows, columns) * columns) * sizeof(float);
}

NormBackwardGrid::NormBackwardGrid(int64_t rows, int64_t vectors) {
  constexpr int64_t kMax = kNormBackwardMaxThreads;
  vectors_per_thread = vectors <= kMax ? 1 : vectors <= 2 * kMax ? 2 : 4;
  const int64_t warps = ceil_div(vectors, int64_t{vectors_per_thread} * kWarpSize);
  threads = static_cast<unsigned>(warps * kWarpSize);
  const unsigned resident = vectors_per_thread == 1 ? 1024 : 512;
  const unsigned blocks_per_sm = std::min(8u, resident / threads);
  num_blocks = static_cast<unsigned>(std::min<int64_t>(rows, 132 * blocks_per_sm));
}

size_t NormBackwardGrid::partial_bytes(int64_t width) const {
  return static_cast<size_t>(ceil_div(num_blocks * width, 64)) * 64 * sizeof(float);
}

size_t squared_norm_scratch_bytes(int64_t count) {
  return static_cast<size_t>(ceil_div(count, kSquaredNormBlockElems)) * sizeof(double);
}

size_t row_losses_bytes(int64_t rows) {
  return static_cast<size_t>(rows) * sizeof(double);
}

int64_t sort_rows_pieces(int64_t pairs) {
  return (pairs + kSortPiecePairs - 1) / kSortPiecePairs;
}

size_t sort_rows_scratch_bytes(int64_t pairs, int64_t experts) {
  return static_cast<size_t>(sort_rows_pieces(pairs) * experts) * sizeof(int32_t);
}

QuantizeScratch::QuantizeScratch(int64_t rows, int64_t columns, int64_t block, bool has_bias)
    : sums_at(block == 0 ? kQuantizeMagnitudes * sizeof(uint32_t) : 0), bytes(sums_at) {
  if (has_bias) {
    bytes += static_cast<size_t>(ceil_div(rows, kQuantizeTile) * columns) * sizeof(float);
  }
}

size_t router_losses_scratch_bytes(int64_t tokens) {
  return static_cast<size_t>(ceil_div(tokens, kRouterLossTokens)) * 2 * sizeof(double);
}

RouterDgradScratch::RouterDgradScratch(int64_t rows, int64_t experts, int64_t width) {
  constexpr size_t kElemBytes = 2;
  weights_at = product_in_scratch_bytes(rows, 2 * experts, kElemBytes);
  product_at = weights_at + product_in_scratch_bytes(2 * experts, width, kElemBytes);
}

int64_t weight_grad_parts(int64_t columns) {
  return ceil_div(columns, kWeightGradColumns);
}

size_t weight_grad_parts_bytes(int64_t rows, int64_t columns) {
  return product_in_scratch_bytes(weight_grad_parts(columns), rows, sizeof(float));
}

int64_t head_norm_blocks(int64_t rows) {
  constexpr int64_t kMaxBlocks = 528;  // 4 blocks of 256 threads on each of 132 multiprocessors
  return std::min(rows, kMaxBlocks);
}

size_t head_norm_partial_bytes(int64_t rows, int64_t width) {
  return product_in_scratch_bytes(head_norm_blocks(rows), width, sizeof(float));
}

size_t sort_array_bytes(int64_t rows) {
  return static_cast<size_t>(ceil_div(rows, 64)) * 64 * sizeof(uint32_t);
}

}  // namespace braid
