#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct HalveForwardOptions {
  /// Of a microbatch, as the ranks of a tensor group hold them together; each half must be whole
  /// sequences, and with sequence parallelism a multiple of the tensor ranks. 0: the pass does
  /// nothing.
  int64_t rows = 0;
  int64_t min_rows = 128;  ///< of a piece of a half: a tile of a matrix product
  int comm_priority = 1;   ///< of the stream of tensor ranks, if the pass makes it
};

/// Cuts every forward of a microbatch into the halves of its rows and weaves them, so that
/// communication of tensor ranks of one half runs under compute of the other; the backward stays
/// whole. Of a dense layer, A attention and E feed-forward, with the half; a star marks calls, on
/// stream "comm.tensor":
///   before: A  reduce_scatter  all_gather  E  reduce_scatter  all_gather  ...
///   after:  A0  reduce_scatter0*  all_gather0*  A1  reduce_scatter1*  all_gather1*  E0  E1  ...
/// A half is whole sequences, so that attention is cut, too (split_task.h says how each op is). Ops
/// that cannot be cut stay whole, in the first half if that is possible, else in the second.
///
/// A half of a product that takes longer than the calls beside it (E0 above) is cut once more where
/// these end, if the cost model says that its pieces together take no longer: the other half then
/// goes on to its next call in between.
///
/// With sequence parallelism rank r of P then holds two runs of rows, its P-th part of each half:
/// every all_gather and reduce_scatter of a microbatch's rows, of backwards as well, becomes two of
/// half the size. An input gradient that makes, or reads, what these move is cut, too, so that one
/// half runs beside the call of the other, unless the cost model says that halves take 5% longer:
///   before: linear_dgrad(y -> Z)  reduce_scatter(Z -> z)
///   after:  linear_dgrad(y[0] -> Z[0])  reduce_scatter(Z[0] -> z[0])*  linear_dgrad(y[1] -> Z[1])
///           reduce_scatter(Z[1] -> z[1])*
/// All-reduces are cut in forwards only. Weight gradients are sums over all rows, as before.
///
/// Against halves as microbatches (pair_forward_backward): the backward, whose weight gradients
/// have something to hide tensor communication with, keeps its large products; nothing is added to
/// a weight gradient twice; any schedule will do.
///
/// Counts forwards that are woven; goes by prices like pair_forward_backward, so that all ranks of
/// a group come to one order. May change rounding: of products, as in ring_exchange.h, and of the
/// gradients of norms, whose partial sums are over other rows. All ranks must run it, or none.
/// Place: behind recompute and offload, which know activations as wholes; in front of
/// ring_exchange, which takes each half by itself. Source: Wang et al., Domino, 2024, for the
/// halves.
PassResult halve_forward(Program program, const HalveForwardOptions& options,
                         const PassContext& context);

Pass halve_forward_pass(const PipelineOptions& options);

}  // namespace braid
