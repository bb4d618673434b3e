#pragma once

#include <functional>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/quantize_tile.cuh"

// Launches of quantize_kernel, by blocks and sources.
namespace braid::quantize_tile {

/// Launches all kernels of a quantize task but those of db.
using QuantizeLaunch = std::function<void(const CudaKernelArgs&, const QuantizeArgs&)>;

template <Blocks kBlocks, bool kAligned, class Source>
void launch_blocks(const Source& source, const QuantizeArgs& args, cudaStream_t stream) {
  const unsigned tiles = grid_of(ceil_div(args.rows, kTile) * ceil_div(args.columns, kTile));
  const auto kernel = args.tally == nullptr ? quantize_kernel<kBlocks, kAligned, false, Source>
                                            : quantize_kernel<kBlocks, kAligned, true, Source>;
  kernel<<<tiles, kThreads, 0, stream>>>(source, args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

/// Whole vectors everywhere: of rows of x and the row copy, and of rows of the column copy.
inline bool has_whole_vectors(const QuantizeArgs& args) {
  return args.columns % kVector == 0 && args.rows % kColumnRows == 0 &&
         all_aligned(16, {args.row.data, args.column.data});
}

template <class Source>
bool has_whole_chunks(const Source& source, const QuantizeArgs& args) {
  return source.is_aligned() && has_whole_vectors(args);
}

template <Blocks kBlocks, class Source>
void launch_copies(const Source& source, const QuantizeArgs& args, cudaStream_t stream) {
  if (has_whole_chunks(source, args)) {
    launch_blocks<kBlocks, true>(source, args, stream);
  } else {
    launch_blocks<kBlocks, false>(source, args, stream);
  }
}

}  // namespace braid::quantize_tile
