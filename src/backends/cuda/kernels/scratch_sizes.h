#pragma once

#include <cstddef>
#include <cstdint>

/// Scratch of our own kernels, by shape. Knows nothing of CUDA, so that memory can be counted
/// before there is a device; the kernels ask the same functions.
namespace braid {

/// No matrix product is given an algorithm that needs more.
inline constexpr uint64_t kMaxGemmScratchBytes = uint64_t{64} << 20;

/// A product [rows, columns] that is only handed on to the next kernel of the same task, with what
/// keeps scratch behind it aligned.
size_t product_in_scratch_bytes(int64_t rows, int64_t columns, size_t elem_bytes);

/// What bias_grad sums into first: [chunks of rows, columns] f32. The chunks are a function of the
/// shape, for the narrowest tile of its kernel, so that scratch is enough for all.
int64_t bias_grad_chunks(int64_t rows, int64_t columns);
size_t bias_grad_scratch_bytes(int64_t rows, int64_t columns);

inline constexpr int kNormBackwardMaxThreads = 512;

/// How the rows of a norm's backward are cut: one wave of blocks on 132 multiprocessors, with the
/// threads that the registers leave room for (1024 of 64 registers, 512 of 128). A device with
/// another number of them gives the same bits.
struct NormBackwardGrid {
  unsigned threads = 0;
  unsigned num_blocks = 0;
  int vectors_per_thread = 1;

  /// `vectors` of 16 bytes in a row.
  NormBackwardGrid(int64_t rows, int64_t vectors);
  /// Sums of the blocks over their rows: [num_blocks, width] f32, of dw, and again of db.
  size_t partial_bytes(int64_t width) const;
};

/// Elements that a block of squared_norm adds up; scratch has an f64 per block.
inline constexpr int64_t kSquaredNormBlockElems = 32768;
size_t squared_norm_scratch_bytes(int64_t count);

/// A loss per row, f64.
size_t row_losses_bytes(int64_t rows);

/// One of the four arrays of keys or row numbers that embedding_wgrad sorts; what the sort itself
/// needs comes on top.
size_t sort_array_bytes(int64_t rows);

}  // namespace braid
