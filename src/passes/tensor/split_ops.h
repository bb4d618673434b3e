#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct SplitOpsOptions {
  /// Off, because a product in pieces may be rounded in another way, and because pieces live
  /// longer.
  bool enabled = false;
  /// The consumer must begin this much sooner for each task that is cut or moved.
  int64_t min_gain_ns = 5'000;
  /// Rows, or features of a weight gradient, of every piece of a product: the tile of one on the
  /// devices we know. Other ops are cut at the same places.
  int64_t min_rows = 128;
  int64_t max_pieces = 8;  ///< of one task
  /// Tasks between a place and the one that a piece moves to. Operands of what moves live longer,
  /// so this bounds memory: some two layers, forward and backward.
  int64_t max_distance = 96;
};

/// Cuts tasks where a whole one stands at the wrong side of a wait. Where a task of compute waits
/// for communication of tensor ranks on its own stream, and an earlier task, on which nothing in
/// between depends, is done long before: the last part of that one runs in the wait.
///   before: all_reduce(a)*  wgrad1  use(a)  dgrad(-> b)  all_reduce(b)*  use(b)
///           a is summed long before wgrad1 ends, and use(b) waits for b
///   after:  all_reduce(a)*  wgrad1[0:640]  use(a)  dgrad(-> b)  all_reduce(b)*  wgrad1[640:1024]
///           use(b)
/// What is in front of use(b) is the same as before, and takes less time: the wait was idle, and a
/// was used sooner. A task that fits moves as a whole. How a task may be cut is in split_task.h;
/// where, the costs say: what two pieces take more than the whole (tiles, launches) and what
/// communication takes from compute beside it are counted in, by putting every candidate into a
/// timeline of this rank (cost_timeline.h), which waits for no other rank. Nothing moves behind
/// what depends on it, past the end of a wait, or if the task that waits would not begin
/// `min_gain_ns` sooner.
///
/// Nearest tasks first, so that operands live as long as they must and not longer; memory grows by
/// those of what moves. Sums of weight gradients keep their order: over the rows of a microbatch
/// because pieces are of features, over microbatches because these conflict.
///
/// Counts tasks that are cut or moved. Without PassContext::cost_model it does nothing, nor to
/// programs with context ranks. May change rounding, see SplitTraits::keeps_bits. Place: behind
/// bulk_overlap and what weaves jobs, which decide what runs beside what; in front of what moves
/// reductions to where gradients are ready. Source: the plan of Paddle's pull request 57446
/// (cost-driven splitting of a forward op beside a communication of the backward), which it did not
/// carry out.
PassResult split_ops(Program program, const SplitOpsOptions& options, const PassContext& context);

Pass split_ops_pass(const PipelineOptions& options);

}  // namespace braid
