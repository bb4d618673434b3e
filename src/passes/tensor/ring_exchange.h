#pragma once

#include <cstdint>

#include "passes/pass.h"
#include "passes/tensor/tensor_sites.h"

namespace braid {

struct RingExchangeOptions {
  SiteOverlaps sites = default_site_overlaps();  ///< those with kRing and kChunked are looked at
  /// A product whose pieces would have fewer rows or features than this stays whole: a piece below
  /// the tile of a matrix product (128 rows on the devices we know) takes as long as a tile.
  int64_t min_rows = 128;
  int comm_priority = 1;  ///< of the stream, if the pass makes it
};

/// Cuts products and the communication of tensor ranks that they depend on, or that depends on
/// them, into pieces, so that one piece is computed while another is on its way. P ranks, this one
/// is r; a row block is what one rank holds: rows / P; calls on stream "comm.tensor" are marked *.
///
/// Ring in front of a product (linear or linear_dgrad):
///   before: all_gather(x -> X)  linear(X, w -> Y)  ...  linear_wgrad(X, ...)
///   after:  ring_shift(x -> X[r-1])*  linear(x, w -> Y[r])  ring_shift(X[r-1] -> X[r-2])*
///           linear(X[r-1], w -> Y[r-1])  ...  linear(X[r+1], w -> Y[r+1])  copy(x -> X[r])*
/// Each rank passes on what it has just got (shift 1). Blocks land at their final rows, so X is
/// whole at the end, for its other readers; if it has none, the own block is not copied.
///
/// Ring behind a product:
///   before: linear(x, w -> Y)  reduce_scatter(Y -> y)
///   after:  linear(x[r+1], w -> Y[r+1])  ring_shift(Y[r+1] -> S[r-1]) {shift=1}*
///           linear(x[r+2], w -> Y[r+2])  ring_shift(Y[r+2] -> S[r-2]) {shift=2}*  ...
///           linear(x[r], w -> Y[r])  sum_blocks(S[0], ..., Y[r], ..., S[P-1] -> y)
/// Each block goes to its owner at once, and the own one is computed last. Every addend has a place
/// of its own (S, of P-1 blocks), and the owner adds them in group order in fp32 (f64 for f64):
/// reduce_scatter's bits, on every rank and in every run.
///
/// Chunked, behind a linear, in n pieces of the features (rows of w), each a matrix of its own:
///   after:  linear(x, w0 -> Y0)  reduce_scatter(Y0 -> y0)*  linear(x, w1 -> Y1)  ...
///           reduce_scatter(Yn-1 -> yn-1)*  join_columns(y0, y1, ... -> y)
/// and where an all_reduce stands for the reduce_scatter (no sequence parallelism), behind a linear
/// or linear_dgrad, in n pieces of the rows, in place:
///   after:  linear(x[0], w -> Y[0])  all_reduce(Y[0])*  linear(x[1], w -> Y[1])  ...
/// Pieces need not be equal. The last call has no product to hide under: bulk and ring are better
/// where they are possible.
///
/// Where the result is read, or its place is written, before the communication, or the call has
/// other sizes, or P is above 64, a site stays as it is.
///
/// Counts sites (calls that are split). May change rounding: a BLAS library chooses its kernel by
/// the size of the product (OpenBLAS gives other bits to f32 blocks of rows that are no multiple of
/// its tile). Nothing else does. Place: behind recompute, which decides what is gathered
/// again; in front of bulk_overlap. Source: Transformer Engine's ring_exchange and pipeline
/// methods; Wang et al., Overlap Communication with Dependent Computation via Decomposition,
/// ASPLOS 2023. Ours differ in the order of the sum, which is the collective's.
PassResult ring_exchange(Program program, const RingExchangeOptions& options);

Pass ring_exchange_pass(const PipelineOptions& options);

}  // namespace braid
