#pragma once

#include <cstdint>
#include <vector>

#include "parallel/paired_jobs.h"
#include "passes/pass.h"
#include "passes/tensor/tensor_sites.h"

namespace braid {

struct RingExchangeOptions {
  /// Only kRing and kChunked are used; kChunked not in programs with experts.
  SiteOverlaps sites = default_site_overlaps();
  /// A product whose pieces would have fewer rows or features than this stays whole. A piece
  /// smaller than the tile of a matrix product (128 rows on the devices we know) takes as long as a
  /// whole tile.
  int64_t min_rows = 128;
  int comm_priority = 1;  ///< of the stream "comm.tensor", if this pass creates it
  /// Jobs that pair_forward_backward will weave. Their products stay whole: in a pair, compute of
  /// the other job hides the communication without the cost of pieces.
  std::vector<JobPair> pairs = {};
};

/// Cuts products, and the communication of tensor ranks before or after them that depends on them
/// or that they depend on, into pieces. One piece is computed while another is transferred. There
/// are P ranks and this one is r. A row block is the rows of one rank: rows / P. Calls on stream
/// "comm.tensor" are marked *.
///
/// Ring before a product (linear or linear_dgrad):
///   before: all_gather(x -> X)  linear(X, w -> Y)  ...  linear_wgrad(X, ...)
///   after:  ring_shift(x -> X[r-1])*  linear(x, w -> Y[r])  ring_shift(X[r-1] -> X[r-2])*
///           linear(X[r-1], w -> Y[r-1])  ...  linear(X[r+1], w -> Y[r+1])  copy(x -> X[r])*
/// Each rank passes on the block that it has just received (shift 1). Blocks arrive at their final
/// rows, so X is whole at the end for its other readers. If X has no other readers, the own block
/// is not copied.
///
/// Ring after a product:
///   before: linear(x, w -> Y)  reduce_scatter(Y -> y)
///   after:  linear(x[r+1], w -> Y[r+1])  ring_shift(Y[r+1] -> S[r-1]) {shift=1}*
///           linear(x[r+2], w -> Y[r+2])  ring_shift(Y[r+2] -> S[r-2]) {shift=2}*  ...
///           linear(x[r], w -> Y[r])  sum_blocks(S[0], ..., Y[r], ..., S[P-1] -> y)
/// Each block goes directly to its owner. The own block is computed last. Every received addend has
/// its own block in S (P-1 blocks). The owner adds them in group order in fp32 (f64 for f64), which
/// gives the bits of reduce_scatter on every rank and in every run.
///
/// Chunked, after a linear, in n pieces of the features (rows of w), each a separate matrix:
///   after:  linear(x, w0 -> Y0)  reduce_scatter(Y0 -> y0)*  linear(x, w1 -> Y1)  ...
///           reduce_scatter(Yn-1 -> yn-1)*  join_columns(y0, y1, ... -> y)
/// With an all_reduce instead of the reduce_scatter (no sequence parallelism), after a linear or
/// linear_dgrad, in n pieces of the rows, in place:
///   after:  linear(x[0], w -> Y[0])  all_reduce(Y[0])*  linear(x[1], w -> Y[1])  ...
/// Pieces need not be equal. No product is left to hide the last call, so bulk and ring are better
/// where they are possible.
///
/// FP8 products (ops/scaled_linear.h) likewise, with the scales of their rows or features. Before a
/// product the ring moves rows, and the gather of their scales s -> S stays; a piece reads S[r],
/// and join_blocks(S -> S') goes unless something else reads S'. Other pieces of rows read blocks
/// that one join_blocks cuts out of the scales. Such a product stays whole if its pieces would not
/// be equal ones of a multiple of 128 rows (16 with one scale for all); chunks of features need
/// scales of squares and are multiples of 128.
///
/// A site is not changed if the result is read, or its memory is written, before the communication;
/// if the call has other sizes; or if P is above 64.
///
/// Counts sites (calls that are split). May change rounding, only because a BLAS library chooses
/// its kernel by the size of the product: OpenBLAS gives other bits for f32 blocks of rows that are
/// not a multiple of its tile. Place: after recompute, which decides what is gathered again; before
/// bulk_overlap. Source: Transformer Engine's ring_exchange and pipeline methods; Wang et al.,
/// Overlap Communication with Dependent Computation via Decomposition, ASPLOS 2023. Ours differ in
/// the order of the sum, which is the order of the collective.
PassResult ring_exchange(Program program, const RingExchangeOptions& options);

Pass ring_exchange_pass(const PipelineOptions& options);

}  // namespace braid
