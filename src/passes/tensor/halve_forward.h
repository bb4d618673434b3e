#pragma once

#include <cstdint>
#include <string>

#include "passes/pass.h"

namespace braid {

struct HalveForwardOptions {
  /// Rows of a microbatch, over all ranks of a tensor group. Each half must be whole sequences and,
  /// with sequence parallelism, a multiple of the number of tensor ranks. 0: the pass does nothing.
  int64_t rows = 0;
  /// Why the forwards of all ranks stay whole; empty: they become halves. With sequence
  /// parallelism, ranks of different stages must have the same rows, so the run decides for all of
  /// them, whatever the program of one rank has.
  std::string whole_because = {};
  int64_t min_rows = 128;  ///< of a piece of a half: the tile of a matrix product
  int comm_priority = 1;   ///< of the stream "comm.tensor", if this pass creates it
};

/// Cuts every forward of a microbatch into two halves of its rows and interleaves them, so that
/// tensor communication of one half runs under compute of the other. The backward stays whole. For
/// a dense layer with attention A and feed-forward E; the digit is the half, and * marks calls on
/// stream "comm.tensor":
///   before: A  reduce_scatter  all_gather  E  reduce_scatter  all_gather  ...
///   after:  A0  reduce_scatter0*  all_gather0*  A1  reduce_scatter1*  all_gather1*  E0  E1  ...
/// A half consists of whole sequences, so attention is cut too (split_task.h says how each op is
/// cut). Ops that cannot be cut stay whole, in the first half if possible, else in the second.
///
/// If half of a product (E0 above) takes longer than the calls beside it, it is cut again where
/// these calls end, provided the cost model says that the pieces together take no longer. The other
/// half can then start its next call in between.
///
/// With sequence parallelism, rank r of P holds two runs of rows: its P-th part of each half. Every
/// all_gather and reduce_scatter of a microbatch's rows, also in the backward, becomes two calls of
/// half the size. An input gradient that writes or reads their data is cut too, so that one half
/// runs beside the call of the other, unless the cost model says that the halves take 5% longer:
///   before: linear_dgrad(y -> Z)  reduce_scatter(Z -> z)
///   after:  linear_dgrad(y[0] -> Z[0])  reduce_scatter(Z[0] -> z[0])*  linear_dgrad(y[1] -> Z[1])
///           reduce_scatter(Z[1] -> z[1])*
/// All-reduces are cut in the forward only. Weight gradients are still sums over all rows.
///
/// Compared with halves as separate microbatches (pair_forward_backward): the backward keeps its
/// large products, and its weight gradients can hide tensor communication; no weight gradient is
/// accumulated twice; any schedule works.
///
/// Cannot cut programs with experts: their rows are in an order of experts, so that a half of them
/// is no half of the tokens. Nor those in which ranks gather FP8 copies, for a like reason. FP8
/// products of gathered values are cut; what makes their copies is not.
///
/// Counts interleaved forwards. Uses prices as pair_forward_backward does, so that all ranks of a
/// group choose the same order. May change rounding of products, as in ring_exchange.h, and of norm
/// gradients, whose partial sums cover other rows. All ranks must run this pass, or none. Place:
/// after recompute and offload, which need whole activations; before ring_exchange, which handles
/// each half separately. Source: Wang et al., Domino, 2024, for the halves.
PassResult halve_forward(Program program, const HalveForwardOptions& options,
                         const PassContext& context);

Pass halve_forward_pass(const PipelineOptions& options);

}  // namespace braid
