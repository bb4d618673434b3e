#pragma once

#include <cstddef>
#include <cstdint>

#include "ir/op_spec.h"

/// Scratch of our own kernels, by shape. Independent of CUDA, so that memory can be counted without
/// a device; the kernels call the same functions.
namespace braid {

/// The limit of scratch for the algorithm of a matrix product.
inline constexpr uint64_t kMaxGemmScratchBytes = uint64_t{64} << 20;

/// A product [rows, columns] that is only passed to the next kernel of the same task, padded so
/// that the scratch after it is aligned.
size_t product_in_scratch_bytes(int64_t rows, int64_t columns, size_t elem_bytes);

/// An fp32 result that is added to a bf16 one, padded likewise (wide_result.h).
size_t wide_result_bytes(const OperandSpec& narrow);

/// The number of chunks in bias_grad's partial sums [chunks of rows, columns] f32. It depends only
/// on the shape and assumes the narrowest tile of the kernel, so that scratch suffices for all
/// tiles.
int64_t bias_grad_chunks(int64_t rows, int64_t columns);
size_t bias_grad_scratch_bytes(int64_t rows, int64_t columns);

inline constexpr int kNormBackwardMaxThreads = 512;

/// The division of rows in a norm's backward: one wave of blocks on 132 multiprocessors, with as
/// many threads as registers allow (1024 with 64 registers, 512 with 128). A device with another
/// number of multiprocessors gives the same bits.
struct NormBackwardGrid {
  unsigned threads = 0;
  unsigned num_blocks = 0;
  int vectors_per_thread = 1;

  /// `vectors`: vectors of 16 bytes in a row.
  NormBackwardGrid(int64_t rows, int64_t vectors);
  /// Bytes of the blocks' sums over their rows: [num_blocks, width] f32, for dw, and again for db.
  size_t partial_bytes(int64_t width) const;
};

/// Elements per block of squared_norm; scratch has an f64 per block.
inline constexpr int64_t kSquaredNormBlockElems = 32768;
size_t squared_norm_scratch_bytes(int64_t count);

/// Bytes of one f64 loss per row.
size_t row_losses_bytes(int64_t rows);

/// Tokens per block of router_losses; scratch has two f64 per block.
inline constexpr int64_t kRouterLossTokens = 64;
size_t router_losses_scratch_bytes(int64_t tokens);

/// Scratch of router_linear_dgrad with bf16 weights: d_logits in two bf16 parts [T, 2 E], the
/// weight twice [2 E, C], then that of the product.
struct RouterDgradScratch {
  size_t weights_at = 0;
  size_t product_at = 0;

  RouterDgradScratch(int64_t rows, int64_t experts, int64_t width);
};

/// Blocks of head_norm_backward, each of which takes every num_blocks-th row; and the bytes of
/// their sums for one weight: [num_blocks, width] f32, padded so that the sums after them are
/// aligned.
int64_t head_norm_blocks(int64_t rows);
size_t head_norm_partial_bytes(int64_t rows, int64_t width);

/// Bytes of one of the four arrays of keys or row numbers that embedding_wgrad sorts; the sort
/// needs additional memory.
size_t sort_array_bytes(int64_t rows);

/// Pairs of token and slot that a block of sort_rows places, and the number of such pieces; scratch
/// has an i32 for each piece and expert.
inline constexpr int64_t kSortPiecePairs = 2048;
int64_t sort_rows_pieces(int64_t pairs);
size_t sort_rows_scratch_bytes(int64_t pairs, int64_t experts);

/// Of a product of groups: the number of the next tile.
inline constexpr size_t kGroupedScratchBytes = 256;

/// grouped_linear_dgrad_swiglu_backward in one kernel: d_weights of blocks of so many columns
/// [blocks, rows] f32, and the number of such blocks.
inline constexpr int64_t kWeightGradColumns = 128;
int64_t weight_grad_parts(int64_t columns);
size_t weight_grad_parts_bytes(int64_t rows, int64_t columns);

inline constexpr int64_t kQuantizeTile = 128;        ///< rows and columns of a block of threads
inline constexpr int64_t kQuantizeMagnitudes = 256;  ///< u32 maxima of parts of x

/// Scratch of quantize: the magnitudes, if one scale serves all elements; then, for db, the sums of
/// columns of each tile of rows [tiles, columns] f32.
struct QuantizeScratch {
  size_t sums_at = 0;
  size_t bytes = 0;

  QuantizeScratch(int64_t rows, int64_t columns, int64_t block, bool has_bias);
};

}  // namespace braid
